"""Words that tell nothing about a person: ordinary English, and the terms of technical work.

They decide by rarity. A word of a personal statement that is not here is taken for a detail of
that person; a sentence about a task may hold such words only where nothing speaks against it. So a
word that may itself be a private fact (an illness, a trade, a kin, a belief, a place) is left out
on purpose, however common it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

import Stemmer  # type: ignore[import-not-found] # a compiled module without stubs

FUNCTION = frozenset(
    """
    a about above across after again against all almost along already also although always am
    among an and another any anyone anything anyway are aren't around as at away back be became
    because become becomes been before behind being below beside besides between beyond both but
    by can cannot can't could couldn't did didn't do does doesn't doing don't done down during
    each either else enough even ever every everyone everything except few for from further get
    gets getting got had has hasn't have haven't having he her here hers herself him himself his
    how however i if in inside instead into is isn't it it's its itself just let's like may maybe
    me might mine more most much must my myself near need neither never next no nobody none nor
    not nothing now of off often on once one only onto or other others otherwise ought our ours
    ourselves out outside over own per perhaps quite rather same shall she should shouldn't since
    so some someone something sometimes soon still such than that that's the their theirs them
    themselves then there therefore there's these they this those though through thus to together
    too toward towards under unless until up upon us very via was wasn't we well were weren't what
    whatever when where whereas whether which while who whole whom whose why will with within
    without won't would wouldn't yes yet you your yours yourself ok okay please thanks thank hello
    hi dear sorry eg ie etc vs i'm i've i'd i'll you're you've they're we're we've he's she's
    what's
    """.split()  # noqa: SIM905 # a list of words reads better as words
)
"""Words that sentences are built from."""

ORDINARY = frozenset(
    """
    roman numeral numerals hidden insensitive insensitively sensitive reuse reused leak leaked
    fold folded unfold ounce ounces fluid inbox outbox archive visit visits non breaking
    occurrence eur usd gbp chf jpy cny euros dollars home users mnt opt usr media desktop
    documents downloads www var etc kg km cm mm mg ml lb oz ft mph kmh kwh hello foo bar baz quux
    lorem ipsum older oldest newer newest larger largest smaller smallest bigger biggest fewer
    fewest longer longest shorter shortest later earlier earliest higher highest faster fastest
    slower slowest easier easiest simpler simplest hardest cheaper cheapest stricter wider widest
    deeper deepest done went gone took taken gave given began begun came saw seen knew known
    thought told held kept left meant met paid ran said sent shown spent stood wrote written
    brought built caught chose chosen drew drawn fell fallen found grew grown lost overwritten
    rewritten rose threw thrown lying hours minutes seconds days weeks months years banker bankers
    exactly greet greetings greeting guest guests booking bookings photo photos picture pictures
    album music song movie film video audio sensor measurement reading temperature humidity
    pressure rainfall weather trip route flight train bus car ticket seat shop cart basket grade
    grades course lesson exam score scores player game match league tournament library book
    chapter page article vote live lives living play plays played born reside dtype str overflow
    underflow per own instead leave leaves kind sort sorts sorted half away bought sold pack
    packed unpacked load loads mismatch mismatched misread miscount miscounted missed skipped
    dropped dropping split splits stripped wrapped mapped swapped cutting getting setting letting
    putting running blocked whenever wherever anymore altogether meanwhile afterwards beforehand
    twice thrice plausible sane insane tricky subtle surprising surprisingly harmless harmful
    dangerous duplicate duplicated duplicates dedup deduped unescaped doubled doubling halve
    halved nothing something everything anything somewhere nowhere everywhere ability able absent
    accept accepted access accordingly account accurate achieve act action actual actually add
    added addition additional adjust advance affect again agree ahead aim allow alone alternative
    ambiguous amount analysis analyse analyze annotate answer apart apparent appear apply approach
    appropriate approximate area argue arrange arrive ask aspect assign assume attach attempt
    attention automatic available average avoid aware bad balance base basic basis batch begin
    behave behaviour behavior believe belong best better big bit blank both bottom bound break
    brief bring broad broken build bug business busy buy calculate call cancel capable card care
    careful carefully carry case catch category cause caution certain chain chance change charge
    cheap check choice choose clarify clean clear clearly close closed code collect colon column
    combine come comma comment common compare comparison complete completely complex compute
    concern concise conclude condition confirm conflict confuse connect consider consist
    consistent constant contain content continue contrary control convenient convert copy corner
    correct correctly correspond cost count couple cover create cross current custom cut daily
    damage data date day deal decide decimal decision deep default define definite degree delay
    delete deliver demand depend deposit derive describe description deserve design desire detail
    detect determine develop differ difference different difficult digit direct direction disable
    discard discover discuss display distance distinct distinguish divide document double doubt
    draft draw drop due early ease easily easy edit effect effort empty enable end enough ensure
    enter entire entry equal equally equivalent error essential establish estimate evaluate even
    event eventually evidence exact examine example exceed except exception exclude execute exist
    expand expect expected expense expensive explain explicit express extend extent extra extract
    extreme fact fail failed failure fair fall false fast fault feature feed field figure file
    fill filter final finally find fine finish first fit fix fixed flat flow focus follow
    following forbid forget form formal format forward four fraction frame free frequent fresh
    front full fully function gap gather general generally generate give glance go goal good
    gradual great group grow guarantee guess guide hand handle happen hard hardly head heading
    hear help helpful hide high hint hold hour huge idea ideal identical identify ignore imagine
    immediate implement imply important impossible improve include incomplete incorrect increase
    indeed indicate individual inform information initial input insert inspect instance instruct
    instruction integer intend intention interest internal interpret introduce invalid invoice
    involve isolate issue item join judge jump keep key keyword know label lack language large
    last late latest layout lead learn least length less let letter level lie light likely limit
    line link list literal little local locate location logic long look loose lose loss lot low
    lower made main mainly maintain major make manage manner manual many map mark material matter
    maximum mean meaning means measure meet memory mention merely merge message method middle mid
    mind minimal minimum minor minus minute miss missing mistake mix mode model modern modify
    moment month monthly move multiple name namely narrow native natural naive nature necessary
    negative nest neutral new nice normal normally notable note notice number numeric object
    observe obtain obvious occasion occur odd offer old omit open operate opinion opposite option
    orange order ordinary organise organize origin original output outline overall overlap
    overwrite pair paper paragraph part partial particular particularly partly pass passed past
    patch pattern pause pay pending percent perfect perform period permit phase phrase pick piece
    place plain plan plus point poor portion position positive possible possibly post practice
    precede precise prefer prefix prepare presence present preserve pretty prevent previous price
    primary principle print prior problem procedure proceed process produce product progress
    prompt proper properly property propose protect prove provide purchase purpose put quality
    quantity quarter quarterly question quick quickly quiet quote raise random range rare rate
    ratio raw reach read ready real realise realize really rearrange reason reasonable receive
    recent recognise recognize recommend record recover reduce redundant refer reference refuse
    regard region regular reject relate relation relative release relevant reliable rely remain
    remainder remark remember remind remove rename repeat replace reply report represent request
    require required reserve resolve respect respond response responsible rest restore restrict
    result retain retry return reveal reverse review revise rewrite right rise risk role roll root
    rough round row rule run safe safely sale sample save say scale scan scheme scope search
    second section secure see seem select send sense sentence separate separator sequence serial
    series serious serve service set several shape share sharp shift short shorten show shut side
    sign significant silent silently similar simple simply simplify single size skip slash slight
    slightly slow small smooth solid solution solve sound source space spare special specific
    specify speed spell spend spot square stable stage stand standard start state statement static
    stay step stick stop store straight strange strict strictly string strip strong structure
    stuff style subject submit subsequent subset substitute succeed success successful sudden
    suffice sufficient suffix suggest suit suitable sum summarise summarize summary supply support
    suppose sure surprise surround suspect switch symbol table tabular tail take talk target task
    tell temporary tend term test text thing think third three tidy tie tight time tiny title
    today tomorrow tool top topic total touch trace track trail trailing transform translate
    transpose treat trial trick trim trouble true truncate trust truth try turn two type typical
    typically unable uncertain unclear underscore understand unexpected unify unique unit unknown
    unlike unnecessary unquoted unsorted untouched unusual upper use used useful useless usual
    usually valid validate valuable value vary verify version view visible wait want warn warning
    waste watch way week weekly weight weird wide width win wish word work worse worst worth wrap
    write wrong year yearly yesterday yield zero five six seven eight nine ten eleven twelve
    hundred thousand million dozen once agent assistant user person people customer client harness
    session reader author owner team beginning ending finding opening understanding thinking
    leading correctness sheet spreadsheet ledger export import receipt budget sales stock
    inventory catalog catalogue email mail phone street city country currency dollar euro cent tax
    discount delivery shipment parcel vendor supplier sku department employee subscriber visitor
    attendee participant member reservation appointment schedule calendar deadline meeting agenda
    slide presentation essay poem story recipe ingredient menu guideline newsletter bullet bullets
    numbered tone wording salutation signature closing header footer footnote caption font bold
    italic colour color red green blue yellow black white grey gray margin abbreviation acronym
    abbreviate capital capitalise capitalize uppercase lowercase metric imperial celsius
    fahrenheit kilometre kilometer metre meter mile kilogram gram litre liter january february
    march april june july august september october november december jan feb mar apr jun jul aug
    sep sept oct nov dec monday tuesday wednesday thursday friday saturday sunday mon tue wed thu
    fri sat sun noon midnight morning evening afternoon night weekday weekend today's english
    german french spanish italian portuguese dutch chinese japanese korean russian latin greek
    arabic cyrillic british american european iso din aggregate alphabet alphabetical ascending
    descending chronological consecutive contiguous cumulative denominator numerator dimension
    histogram interval iterate median percentile permutation precision probability quotient recall
    sequential sigma statistic subtotal subtract sums tally threshold totals unchanged unequal
    variance
    """.split()  # noqa: SIM905 # a list of words reads better as words
)
"""Ordinary words: a text about any work is full of them."""

TECHNICAL = frozenset(
    """
    sig cell cells comm paste tr tac rev nl od xxd hexdump iconv dos2unix unix2dos du df ps ln cp
    ls seq shuf csplit fmt bc dc yq nc dig ping scp ssh zcat zgrep gz xz pushd popd basename
    dirname realpath readlink mktemp timeout nice pgrep pkill lsof strace ldd nm objdump gdb make
    ninja print0 printf getline argv argc nul nbsp esc iter listdir walk dropna fillna strptime
    loads dumps dictreader dictwriter writerow readlines splitlines rstrip lstrip startswith
    endswith fromisoformat defaultdict heapq bisect itertools functools collections shlex casefold
    swapcase titlecase zfill ljust rjust baseloader safeloader yamllint checker grader amp quot lt
    gt abort absolute accessor accumulator acknowledge acl active adapter address admin agent
    aggregate alert algorithm alias align alignment alloc allocate alphanumeric ansi anchor
    annotation anonymous antivirus apache api app append applet application apt arch archive
    argparse args argument arithmetic array artefact artifact ascii assembly assert assertion
    assertionerror assignment associative async asynchronous asyncio atomic attribute
    attributeerror audit auth authenticate authentication authorise authorize autocomplete avro
    awk aws azure backend background backoff backslash backtick backtrack backup bandwidth bar
    bash bat batch beautifulsoup benchmark bigint bignum bin binary bind bison bit bitmap bitwise
    blob block blocking bom bool boolean boot bounded bracket brackets branch breakpoint broadcast
    browser brotli bsd bucket buffer bufsize build builtin bulk bundle bus byte bytes bytecode
    bytestring bzip2 c cache calendar callback caller camelcase canonical cargo carriage cast cat
    cd cdn certificate cgi channel char character charset checksum child chmod chown chunk ci cidr
    cipher circular class classpath clause cleanup cli client clipboard clock clone closure cloud
    cluster cmake cmd codec codepoint coerce collation collection colon column combinator command
    commandline comma commit comparator compile compiler component composite compress compression
    computation concat concatenate concatenation concurrency concurrent conda config configparser
    configuration configure connection connector console const constraint constructor consumer
    container context coordinate core coroutine corrupt corruption counter coverage cp1252 cpp cpu
    crash crawler crc crlf cron crontab cross crypto css csv csvkit ctrl curl cursor cwd cycle
    daemon dashboard database dataclass dataframe dataset datatype datetime dateutil day daylight
    db dd ddl deadlock debug debugger decode decoder decompress decorator decrement dedent
    deduplicate dedupe deduplication deep default deflate delegate delimit delimited delimiter
    dependency deploy deployment deprecate deprecated deque deserialise deserialize dev device
    dict dictionary diff diffing digest dir directory disk dispatch dist distribution django dns
    docker dockerfile docstring docx dom domain dotenv dotted download downstream driver dry dst
    dtd dtype dump dynamic echo edge edgecase editor egrep elasticsearch element elf elif emit
    emoji encapsulate encode encoder encoding encrypt endian endpoint engine entity entrypoint
    enum enumerate env environment eof eol eoferror epoch epub errno escape escaped escaping
    eslint eval excel exe exec executable executor exif exit exponent exporter expression
    extension external failover fallback fastapi feather fetch ffmpeg fgrep field fieldname
    fieldnames fifo filehandle filename filenames filenotfounderror filesystem filetype filler
    finalizer firewall firmware flag flake8 flask float floating floor flush folder foreach
    foreign fork form formatter formula fortran fragment framework frontend frozen fs ftp function
    functional fuzzy gateway gawk gb gc gcc generator generic getter gib gif git github gitignore
    gitlab glob global glossary gmt gnu go golang google gpu gradle grammar granularity graph
    graphql greedy grep grid group groupby grpc guard gui gunzip gzip hadoop handler handshake
    hang hardcode hardcoded hash hashing hashmap header headers headless heap heredoc hex
    hexadecimal hierarchy hook host hostname hotfix html html5 http https httpx hyphen icon ide
    idempotent identifier ids idle image immutable imap imperative implementation importerror
    indent indentation indentationerror index indexerror indexes indices indirect inf infinite
    infinity inheritance init inject inline inode input insertion install installation instantiate
    integer integration integrity interactive interface interpolate interpolation interpreter
    interrupt intersection intersperse introspection invariant invocation invoke io ioerror ip
    ipv4 ipv6 iso iso8601 iterable iteration iterator java javac javascript jinja jinja2 job join
    journal journalctl jpeg jpg jq js json json5 jsonl jsonlines jsonpath jsonschema jupyter jvm
    jwt kafka kb kernel key keyboard keyerror keyword kib kill kubectl kubernetes lambda language
    latency latex latin1 layer lazy ldap leaf leap legacy lexer lexical lf lib library licence
    license linefeed linter linux list listener literal llm load loader locale localhost lock
    lockfile log logfile logger logging logic login logrotate logs long lookahead lookbehind
    lookup loop lowercase lru lxml lz4 machine macos macro magic main makefile malformed malloc
    mandatory manifest map mapping markdown markup mask master match math matplotlib matrix maven
    max mb md md5 mebibyte media memory merge mergesort metadata method mib microsecond
    microservice middleware migrate migration millisecond milliseconds mime min minify mkdir mock
    mod mode module modulo monitor monotonic mount mp3 mp4 msgpack multibyte multiline multipart
    multiplication multiprocessing multithread mutable mutex mv mypy mysql namespace nan nano
    nanosecond ndjson nested nesting network newline newlines nfc nfd nfkc nginx node nodejs nohup
    nonzero normalisation normalise normalization normalize nosql notebook notimplementederror npm
    null nullable number numpy oauth object octal octet odbc offline offset online opcode openpyxl
    openssl operand operating operation operator optimise optimize optional oracle orm os oserror
    outer outlier overflow overflowerror override overwrite package packet padding page pagination
    pandas panic parallel param parameter parent parenthesis parentheses parquet parse parser
    parsers parsing partition passthrough password patch path pathlib payload pdf pem percent
    performance perl permission permissionerror permissions persist persistent php physical pickle
    pid pip pipe pipeline pivot pixel placeholder placeholders plaintext platform plugin png
    pointer poll polling pool pop port portable posix postgres postgresql postscript powershell
    ppt pptx pragma preamble precedence predicate preprocess preprocessor prerequisite preview
    primitive priority privilege probe processor profile profiler program programming project
    promise protobuf protocol prototype proxy pseudo psql pull push pwd py pydantic pyproject pypi
    pytest python python3 pyyaml quantile query queue quicksort quota quotation quoted quoting r
    rabbitmq radix raise ram random range rate raw react readable reader readline readme readonly
    rebase recompute recursion recursionerror recursive redirect redis refactor refactoring regex
    regexp register regression reindex relational reload remote render renderer replica
    replication repo repository requirement requirements reset resize resource rest restart
    retries retry revert revision rewrite rfc rfc3339 rm rollback root rotate rotation round
    rounding route router routine rpc rsync rst rtf ruby ruff runner runtime runtimeerror rust
    safari sandbox sanitise sanitize scalar schema schemas scipy scope scrape scraper script
    scripts sdk sdist sed segment selector semantic semantics semaphore semicolon semver sentinel
    separator serialisation serialise serialization serialize server servlet session set setter
    settings setup sh sha1 sha256 shard shebang shell shellcheck shuffle sidecar signal signature
    signed simulate simulation singleton skeleton sleep slice slug smtp snake snakecase snapshot
    snippet soap socket software sort sorted sorting spec specification splice splitter spring sql
    sqlalchemy sqlite sqlite3 src ssl stack stacktrace stale standalone stat stderr stdin stdout
    stemming stopword storage stream streaming strftime stringify stripping struct stub stylesheet
    subcommand subdirectory subfolder submodule subprocess subquery subroutine subscribe subsecond
    subshell substring subtree sudo suite superscript subscript svg svn swap symlink sync
    synchronise synchronize synchronous syntax syntaxerror sysadmin syscall syslog system
    systemctl systemd tab tabs tabulate tag tar tarball tb tcp tee telemetry telnet template temp
    tempfile tensor terminal terminate terminator terraform tests tex textual theme thousands
    thread threading throttle throughput throw timedelta timedout timeit timeouterror timer
    timestamp timestamps timezone timezones tls tmp tmux toggle token tokenise tokenize tokenizer
    tolerance toml toolbar toolchain toolkit trace traceback transaction transcode transcript
    transition transitive transport traverse traversal tree trigger trim trio trivial trunc
    truncation truthy tsv ttl tuple tuples txt typeerror typescript typo tz ubuntu udp ui uid
    unary unbounded undefined undo unescape unescaped unhandled unicode unicodedecodeerror
    unicodeencodeerror uninstall union uniq unittest unix unlink unlock unmount unpack unpickle
    unset unstable unsigned untar unterminated unzip update upgrade upload uppercase upstream uri
    url urls urllib usage usb utc utf utf8 util utility uuid validation validator valueerror var
    variable vector vendor venv verbose verifier vi vim virtual virtualenv volume vscode
    walkthrough warnings wav wc web webhook webpage webpack websocket wget wheel whitelist
    whitespace widget wildcard window windows wrapper writer wsgi wsl x86 xargs xhtml xlrd xls
    xlsx xml xpath xslt yaml yarn yml zerodivisionerror zip zlib zone zoneinfo zsh zst zstd mm
    yyyy yy hh ss ddmmyyyy isoformat prettify unparsed nonempty backfill blocksize dangling dots
    dot glyph hyphens hyphenate ligature umlaut diacritic accent accents accented apostrophe
    asterisk ampersand caret tilde brace braces curly dash dashes ellipsis exclamation hashtag
    pound parens spaces spacing trailing leading lineno rownum precompute rerun reread resort
    rewrap smoketest testcase testing unquote unwrap workaround workspace workflow worktree
    backref nongreedy capturing groups lookups mtime ctime atime filesize bytesize endianness
    littleendian bigendian signedness bitmask checksums crc32 adler luhn modulus parity nonce salt
    hmac aes rsa pkcs cbc gcm iv ec2 s3 gcs iam cors csrf xss
    """.split()  # noqa: SIM905 # a list of words reads better as words
)
"""Terms of technical work. One of them in a sentence speaks for it being about the work."""

WORK = frozenset(
    """
    alphabet amount answer bit block blank bottom case category cell character code column comma
    content copy count currency data date day decimal default difference digit document duplicate
    edge empty end entry error escape example export field figure file fill filter first fix flag
    form format fraction header heading hour import index input invoice item key label last layout
    length letter level limit line list log match maximum mean median merge message minimum minus
    mistake month name negative newline number odd order output page paragraph parse part pattern
    percent plus position prefix price print problem quote range rate ratio read record repeat
    replace report result round row rule scale sentence sequence sheet size skip sort space split
    step string strip suffix sum symbol tab table tail tally text time title total trailing type
    unit upper lower value version weekday width word wrap write year zero
    """.split()  # noqa: SIM905 # a list of words reads better as words
)
"""Ordinary words that name what is worked on."""

_stem = Stemmer.Stemmer("english", 0)  # without a memory of its own
_lock = Lock()  # a Stemmer may serve one thread at a time


def stems(words: Iterable[str]) -> list[str]:
    """The English stem of each word; words are in small letters."""
    with _lock:
        found: list[str] = _stem.stemWords(list(words))
    return found


COMMON = frozenset(stems(FUNCTION | ORDINARY | TECHNICAL))
"""Stems of all of them."""
TERMS = frozenset(stems(TECHNICAL | WORK))
"""Stems of words that speak for a sentence being about the work."""
STOPS = frozenset(stems(FUNCTION)) | FUNCTION
