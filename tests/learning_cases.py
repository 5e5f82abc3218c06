"""Attempts of many kinds, with what must stand where after the split by rules."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """``reusable`` and ``protected`` must stand in that stream, ``never`` not in the reusable one,
    ``nowhere`` in neither. All are compared in small letters."""

    name: str
    task: str
    said: str = ""
    user: str = ""
    tool: str = ""
    tail: str = ""
    outcome: str = "passed"
    reusable: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    nowhere: tuple[str, ...] = ()


FORM = (
    "Name: Katharina Osei\nAddress: Lindenweg 14, 50674 Köln\nPhone: +49 221 555 0147\n"
    "E-mail: k.osei@webpost.example\nBorn: 1979-11-03\nPassport: C01X0006H\n"
    "Insurance: A123456780\nTax: 12 345 678 903\nEmployee: E-88213"
)

CASES = (
    # -- what the work has taught stays reusable
    Case(
        "decimal comma", "Convert the CSV export with amounts to JSON.",
        "The amounts use a decimal comma, so float() fails. Replace the comma with a dot first.",
        tool="date;amount\n01.02.2024;12,50",
        reusable=("decimal comma", "replace the comma with a dot"),
    ),
    Case(
        "encoding", "Count the words in notes.txt.",
        "Lesson learned: the file is encoded in cp1252, not UTF-8; open it with encoding='cp1252'.",
        reusable=("cp1252", "utf-8"),
    ),
    Case(
        "bom", "Merge the two TSV files into one.",
        "It turned out that the first file begins with a UTF-8 BOM. Use utf-8-sig to read it.",
        reusable=("utf-8-sig", "bom"),
    ),
    Case(
        "off by one", "Write a program that prints every third line of a log.",
        "The trap: lines are counted from 1, so use n % 3 == 0 and not n % 3 == 2.",
        reusable=("counted from 1",),
    ),
    Case(
        "log forensics", "Find the request that crashed the server in app.log.",
        "Timestamps in the log are UTC but the crash report uses local time. "
        "Convert both to UTC before comparing.",
        tool="2024-05-01T10:00:00Z ERROR worker 7 died",
        reusable=("timestamps in the log are utc", "convert both to utc"),
    ),
    Case(
        "rotation", "Count the errors per hour in the logs.",
        "The fix was to read the rotated files (app.log.1, app.log.2.gz) as well, oldest first.",
        reusable=("rotated files",),
    ),
    Case(
        "shell", "Rename all files in the folder to lowercase.",
        "Filenames contain spaces, so never loop over the output of ls; use find -print0 with "
        "xargs -0 instead.",
        reusable=("find -print0", "spaces"),
    ),
    Case(
        "sorting", "Sort the version numbers in versions.txt.",
        "Plain sort puts 1.10 before 1.9. Use sort -V.",
        reusable=("sort -v",),
    ),
    Case(
        "yaml", "Turn the YAML settings into a .env file.",
        "The key problem: YAML reads no and off as booleans, so load with BaseLoader.",
        reusable=("booleans", "baseloader"),
    ),
    Case(
        "quoting", "Extract the third column of the CSV.",
        "Fields are quoted and contain commas, so cut -d, is wrong; use the csv module.",
        reusable=("quoted", "csv module"),
    ),
    Case(
        "newlines", "Convert the report from CRLF to LF.",
        "The checker compares bytes: keep exactly one newline at the end of the file.",
        tail="1 passed",
        reusable=("exactly one newline",),
    ),
    Case(
        "error name", "Parse the date column of the export.",
        "strptime raises ValueError because the day comes first. Use the format %d.%m.%Y.",
        reusable=("valueerror", "%d.%m.%y"),
    ),
    Case(
        "check's words", "Write a script that rounds prices.",
        "I rounded with round().",
        tail="AssertionError: banker's rounding was used; prices must be rounded half up",
        outcome="failed",
        reusable=("check said", "rounded half up"), never=("lesson:",),
    ),
    Case(
        "check in lines", "Convert the spreadsheet to Markdown.",
        "Done, all is correct.",
        tail="FAILED\nTraceback (most recent call last):\n  File \"/srv/u/check.py\", line 3\n"
        "pipes inside a cell must be escaped\n1 failed in 0.03s",
        outcome="failed",
        reusable=("pipes inside a cell must be escaped",), never=("/srv", "traceback"),
    ),
    Case(
        "own quirk", "Fix the failing test in parser.py.",
        "In this harness my edit tool strips trailing spaces, so write the file with a heredoc.",
        reusable=("own:", "heredoc"),
    ),
    Case(
        "own shell", "List the ten largest files.",
        "The shell here has no du -h; use du -k and sort -n instead.",
        reusable=("own:", "du -k"),
    ),
    # -- identifying detail is generalised
    Case(
        "path", "Run the build script.",
        "The script /home/kosei/projects/zephyr/run.sh must be called with bash, not sh.",
        reusable=("<path>/run.sh", "bash"), never=("kosei", "zephyr"),
    ),
    Case(
        "windows path", "Fix the batch file.",
        r"The batch file C:\Users\Katharina\run.bat must use CRLF line endings.",
        reusable=("crlf",), never=("katharina",),
    ),
    Case(
        "host", "Download the dump over HTTP.",
        "The server at db7.osei-gmbh.example needs a retry after a timeout; use curl --retry 3.",
        reusable=("curl --retry 3", "<host>"), never=("osei",),
    ),
    Case(
        "url", "Mirror the page.",
        "Use wget with https://intranet.osei.example/a?user=77 only after login; "
        "follow redirects.",
        never=("osei", "user=77"),
    ),
    Case(
        "mail in a finding", "Validate the addresses column.",
        "The regex must accept plus signs as in k.osei+x@webpost.example.",
        reusable=("<email>", "plus signs"), never=("osei", "webpost"),
    ),
    Case(
        "column of the data", "Sum the amounts per region.",
        "The column `umsatz_netto` holds amounts with a thousands separator; strip the dots first.",
        tool="region;umsatz_netto\nNord;1.200",
        reusable=("<name>", "thousands separator"), never=("umsatz",),
    ),
    Case(
        "number", "Find the broken record.",
        "The record 48813377 is broken because its field count is wrong; skip such rows.",
        tool="48813377;x",
        reusable=("<number>",), never=("48813377",),
    ),
    Case(
        "name in the check", "Group the bookings by guest.",
        "Done.", tail="wrong order: 'Katharina Osei' must come after the header row",
        outcome="failed",
        reusable=("header row", "<name>"), never=("katharina", "osei"),
    ),
    # -- a person is protected
    Case(
        "a form read out", "Convert the CSV export with amounts to JSON.",
        "form.txt belongs to Katharina Osei, born 1979-11-03, passport C01X0006H. "
        "The amounts use a decimal comma; replace it with a dot.",
        tool=FORM,
        reusable=("decimal comma",),
        never=("katharina", "osei", "1979", "c01x0006h"),
        nowhere=("c01x0006h",),
    ),
    Case(
        "paraphrase", "Count the words in notes.txt.",
        "The customer is diabetic. Words must be split on any whitespace.",
        tool="diagnosis: type 2 diabetes",
        reusable=("split on any whitespace",), never=("diabet",), protected=("diabetic",),
    ),
    Case(
        "without a subject", "Count the words in notes.txt.",
        "Noted: lives with type 2 diabetes. Words must be split on any whitespace.",
        tool="has had type 2 diabetes since 2011",
        reusable=("whitespace",), never=("diabet",),
    ),
    Case(
        "small letters", "Merge the two TSV files.",
        "the file is for mara quint, she plays handball. Use paste -d '\\t'.",
        tool="owner mara quint\nclub: handball",
        reusable=("paste",), never=("mara", "quint", "handball"),
    ),
    Case(
        "over two lines", "Merge the two TSV files.",
        "The owner of this folder is a member of the\nGreen Harbour choir and votes for them.\n"
        "Use paste -d, to merge.",
        tool="choir: Green Harbour",
        never=("harbour", "choir", "votes"),
    ),
    Case(
        "kin", "Rename all photos by date.",
        "My wife Ingrid must not see it. Use the EXIF date, not the mtime.",
        reusable=("exif date",), never=("ingrid", "wife"),
    ),
    Case(
        "belief", "Count lines in the log.",
        "Note that the author attends the mosque in Ehrenfeld on Fridays.",
        tool="fridays: mosque Ehrenfeld",
        never=("mosque", "ehrenfeld", "attends"),
    ),
    Case(
        "money", "Sum the amounts in the ledger.",
        "The salary is 84200 and there is a loan with Sparbank. Sum with Decimal, not float.",
        tool="salary 84200\nloan Sparbank",
        reusable=("decimal, not float",), never=("84200", "sparbank", "salary", "loan"),
    ),
    Case(
        "chinese", "统计日志里的错误数量 in app.log and print the count.",
        "用户李明住在海淀区，有糖尿病。Read the log line by line; do not load all of it.",
        tool="姓名：李明\n住址：海淀区",
        reusable=("line by line",), never=("李明", "海淀", "糖尿"),
    ),
    Case(
        "german", "Convert the file to UTF-8.",
        "Herr Grabowski wohnt in Bielefeld und hat Asthma. Use iconv -f latin1 -t utf-8.",
        tool="Grabowski, Bielefeld, Asthma",
        reusable=("iconv",), never=("grabowski", "bielefeld", "asthma"),
    ),
    Case(
        "french", "Convert the file to UTF-8.",
        "Elle s'appelle Amélie Dubois et travaille à Nantes. Use iconv with //TRANSLIT.",
        tool="Amélie Dubois; Nantes",
        never=("amélie", "dubois", "nantes", "travaille"),
    ),
    Case(
        "russian", "Count the lines.",
        "Пользователь Иван Петров живёт в Казани. Use wc -l and subtract the header.",
        tool="Иван Петров, Казань",
        reusable=("wc -l",), never=("петров", "казан"),
    ),
    Case(
        "fact of one word", "Count the lines.",
        "Blood group rhesus: zornik. Use wc -l and subtract the header.",
        tool="zornik",
        reusable=("wc -l",), never=("zornik",),
    ),
    Case(
        "a fact as a lesson", "Convert dates in the file.",
        "Lesson: remember that the client's favourite restaurant is Trattoria Bruno.",
        tool="favourite restaurant: Trattoria Bruno",
        never=("trattoria", "bruno", "restaurant"), protected=("bruno",),
    ),
    Case(
        "a fact in technical words", "Convert dates in the file.",
        "The default user config says the owner is a vegan and drinks no milk.",
        tool="diet = vegan", never=("vegan", "milk"),
    ),
    Case(
        "names in the task", "Write a script that prints a greeting for Katharina Osei.",
        "The output must end with a newline.",
        reusable=("script", "newline"), never=("katharina", "osei"),
    ),
    Case(
        "a story in the task",
        "My doctor in Freiburg wants my blood sugar log. Convert the CSV log to HTML.",
        "Escape & as &amp; before writing the table.",
        reusable=("convert the csv log to html", "escape"),
        never=("doctor", "freiburg", "blood"), protected=("freiburg",),
    ),
    # -- secrets and issued identifiers
    Case(
        "credential", "Fetch the report with curl.",
        "The API needs the header Authorization: Bearer sk-proj-abcdEFGH1234567890abcdEFGH1234. "
        "Retry on 429.",
        reusable=("429",), nowhere=("abcdefgh1234567890",),
    ),
    Case(
        "password said by the user", "Fetch the report with curl.",
        user="My password is Tr0ub4dor&3xyz, please always use it.",
        nowhere=("tr0ub4dor",),
    ),
    Case(
        "identity number", "Fill in the template.",
        "The user's social security number is 219-09-9999. Escape braces in the template.",
        reusable=("escape braces",), nowhere=("219-09-9999",),
    ),
    # -- wishes
    Case(
        "dates", "Convert the CSV export to JSON.", user="I prefer dates as DD.MM.YYYY.",
        said="Quote every field.",
        protected=("preference: prefers dates as dd.mm.yyyy",), never=("prefer",),
    ),
    Case(
        "always", "Summarise the log.", user="Please always sign off with \"Best, K.\".",
        protected=("sign off with \"best, k.\"",), never=("best, k",),
    ),
    Case(
        "my reports", "Summarise the log.", user="My reports should start with a summary table.",
        protected=("their reports should start with a summary table",), never=("summary table",),
    ),
    Case(
        "of this agent", "Summarise the log.",
        user="When you sign off, write the date like 3 March 2024.",
        protected=("here: when you sign off",), never=("sign off",),
    ),
    Case(
        "wish in the task", "Summarise the log. I always want headings in capitals.",
        "Count each error once.",
        reusable=("summarise the log",), never=("headings",), protected=("headings in capitals",),
    ),
    Case(
        "listed", "Summarise the log.",
        user="My preferences:\n- dates like 2024/03/09\n- no bullet lists\n- metric units",
        protected=("no bullet lists", "metric units"), never=("bullet", "metric"),
    ),
    # -- verdicts
    Case(
        "the verdict overrides", "Round the prices.", "The fix works: truncate to two digits.",
        outcome="failed", tail="expected rounding half up, got truncation",
        reusable=("check said: expected rounding half up",), never=("lesson:",),
    ),
    Case(
        "error", "Round the prices.", "The fix works: truncate to two digits.",
        outcome="error", tail="grader crashed", user="I prefer tables.",
        never=("truncate", "grader"), protected=("prefers tables",),
    ),
    Case(
        "time-out", "Round the prices.", "Always truncate to two digits.", outcome="timeout",
        never=("truncate",),
    ),
    Case(
        "unknown", "Round the prices.", "The fix is to round half up with Decimal.",
        outcome="unknown",
        reusable=("perhaps: ",), never=("lesson:", "check said:"),
    ),
    # -- words that no list holds
    Case(
        "milliseconds", "Compute the median response time per endpoint from access.log.",
        outcome="failed", tail="FAIL: the log mixes s and ms units",
        reusable=("check said: the log mixes s and ms units",),
    ),
    Case(
        "new words of the work", "Deduplicate the subscriber list in subs.txt.",
        "The catch: addresses differ only in case, so casefold them after NFKC normalisation.",
        reusable=("casefold", "nfkc"),
    ),
    Case(
        "a folder of the task", "You are in a sandbox. Extract all tar archives in inbox/.",
        "Symlinks are counted once.",
        reusable=("inbox/", "symlinks are counted once"),
    ),
    Case(
        "how I like it", "Write a program roman.py.",
        user="\nHow I like documents: dates like 2024/03/09. Headings in Title Case.",
        protected=("preference: dates like 2024/03/09", "preference: headings in title case"),
    ),
    Case(
        "an echoed wish", "Write a report on the log.",
        "Dates stand as 9 March 2024 in the report, as you asked. The total is in the last row.",
        user="I prefer dates as 9 March 2024.",
        reusable=("last row",), never=("march",),
    ),
    Case(
        "delivered lessons are nobody's words", "Write a report on the log.",
        user="\n# Learned memory: user\n\n- When doing any task: I prefer dates as DD/MM/YYYY.",
        never=("dd/mm",), nowhere=("dd/mm",),
    ),
    Case(
        "a verifier that speaks of the person", "Add up the amounts per day into totals.csv.",
        outcome="failed",
        tail="Rows are complete. In this user's tables columns are separated by semicolons.",
        reusable=("check said: rows are complete",), never=("semicolons",),
        protected=("preference: in this user's tables columns are separated by semicolons",),
    ),
    Case(
        "where the result lies", "Count the words.",
        "The list is saved in out/words.txt. The last line must end with a line break.",
        reusable=("the last line must end",), never=("out/words.txt",),
    ),
    Case(
        "a demand for today", "Count the words.",
        user="Please put the title of the list in words.md, with today's date.",
        nowhere=("preference",),
    ),
    Case(
        "a wish without the word", "Count the words.",
        user="Please always begin with a one-line summary. Under the title I want a short table.",
        protected=("preference: please always begin", "preference: under the title they want"),
    ),
    Case(
        "a wish for a place", "Count the words.",
        user="In the terminal I want you to sign off with the date as 2024/03/09.",
        protected=("here: in the terminal they want you to sign off",),
    ),
    Case(
        "one word that nobody knows", "Count the lines of each level.",
        "Lines of the kind quorvex must be counted as errors of the next level.",
        tool="quorvex;1;2",
        reusable=("lines of the kind <name> must be counted",), never=("quorvex",),
    ),
    Case(
        "claim", "Find which worker leaked memory in the logs.",
        "The pid is reused after a restart, so group by pid and start time.",
        outcome="unknown", reusable=("perhaps: the pid is reused",),
    ),
)  # fmt: skip
