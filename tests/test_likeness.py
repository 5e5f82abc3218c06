"""Whether two entries say the same thing: a table over many domains, and rules that hold for any
text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isovist.kernel.learning.likeness import conflict, features, likeness, same

Pair = tuple[str, str, str, str]

ONE: list[Pair] = [
    # (situation, lesson) twice, one below the other: two ways to say one thing
    # -- inflection and function words
    ("exporting a CSV file", "Quote every field that holds a comma.",
     "a CSV file is exported", "Every field holding a comma must be quoted."),
    ("parsing dates", "Read the day before the month.",
     "dates are parsed", "You should read the day before the month."),
    ("merging two spreadsheets", "Sort both sheets by id.",
     "you merge two spreadsheets", "Both sheets should be sorted by id."),
    ("writing an invoice", "Put the tax number below the address.",
     "an invoice is written", "The tax number has to be put below the address."),
    ("packing fragile goods", "Wrap each glass in paper.",
     "fragile goods are being packed", "Each glass must be wrapped in paper."),
    ("booking a train", "Reserve seats in the quiet coach.",
     "a train is booked", "Make sure to reserve seats in the quiet coach."),
    ("a failing test", "Run the single test first.",
     "a test fails", "Always run the single test first."),
    ("restoring a backup", "Check the checksum of the archive.",
     "you restore a backup", "Check the archive's checksum."),
    ("logging in through the proxy", "Send the token in the header.",
     "logging in via the proxy", "The token should be sent in the header."),
    ("planting tomatoes", "Water the roots, not the leaves.",
     "tomatoes are planted", "You must water the roots and not the leaves."),
    ("answering a complaint", "Thank the customer for the report.",
     "complaints are answered", "Please thank the customer for their report."),
    ("counting words", "Skip the header line.",
     "words are counted", "The header line must be skipped."),
    # -- other order
    ("the build fails", "If the cache is stale, clear it before you rebuild.",
     "the build fails", "Before rebuilding, clear the cache if it is stale."),
    ("uploading photos", "Before uploading, strip the location.",
     "uploading photos", "Strip the location before uploading."),
    ("a report is due", "When the totals differ, recount the rows.",
     "a report is due", "Recount the rows when the totals differ."),
    ("sorting names", "Sort by last name, first name and age.",
     "sorting names", "Sort by age, first name and last name."),
    ("serving guests", "Offer tea, coffee and water.",
     "serving guests", "Offer water, tea and coffee."),
    ("closing the shop", "After the last sale, count the cash.",
     "closing the shop", "Count the cash after the last sale."),
    ("parsing JSON", "To parse the file, use jq.",
     "parsing JSON", "Use jq to parse the file."),
    ("filing a claim", "Unless the form is signed, return it.",
     "filing a claim", "Return the form unless it is signed."),
    ("reading sensors", "In winter, calibrate the probe daily.",
     "reading sensors", "Calibrate the probe daily in winter."),
    # -- synonyms of function words
    ("deploying", "When the tests pass, tag the release.",
     "deploying", "If the tests pass, tag the release."),
    ("deploying", "Drain the node prior to the upgrade.",
     "deploying", "Drain the node before the upgrade."),
    ("deploying", "Once the node is drained, upgrade it.",
     "deploying", "After the node is drained, upgrade it."),
    ("rotating keys", "As soon as the key expires, rotate it.",
     "rotating keys", "After the key expires, rotate it."),
    ("choosing fonts", "Use serif fonts instead of script fonts.",
     "choosing fonts", "Use serif fonts rather than script fonts."),
    ("choosing an editor", "Set tabs, not spaces.",
     "choosing an editor", "Set tabs instead of spaces."),
    ("naming files", "Never put spaces in names.",
     "naming files", "Do not put spaces in names."),
    ("naming files", "Don't put a colon in a name.",
     "naming files", "Avoid putting colons in a name."),
    ("handling retries", "Retry at most 3 times.",
     "handling retries", "Retry no more than three times."),
    ("calling the API", "Wait at least 30 s between calls.",
     "calling the API", "Wait no less than 30 seconds between calls."),
    ("editing a draft", "Keep the headings as well as the captions.",
     "editing a draft", "Keep the headings and the captions."),
    ("splitting a log", "Split it with awk.",
     "splitting a log", "Split it by means of awk."),
    ("an outage", "In case the pager rings, call the lead.",
     "an outage", "If the pager rings, call the lead."),
    ("cooking rice", "It is sometimes too salty; perhaps rinse it.",
     "cooking rice", "Occasionally it is too salty; maybe rinse it."),
    ("a slow query", "Usually an index is missing.",
     "a slow query", "An index is typically missing."),
    ("a slow page", "The cache might be cold.",
     "a slow page", "The cache may be cold."),
    ("cleaning text", "Remove all blank lines.",
     "cleaning text", "Remove every blank line."),
    ("cleaning lists", "Remove the blank lines.",
     "cleaning lists", "Delete all blank lines."),
    ("a crash", "Do not forget to save the core file.",
     "a crash", "Save the core file."),
    # -- numbers, values and code in one form
    ("setting limits", "Use a timeout of 30 seconds.",
     "setting limits", "Use a 30 s timeout."),
    ("importing prices", "Drop rows above 10,000 euros.",
     "importing prices", "Drop rows above 10000 euros."),
    ("painting", "Apply two coats.",
     "painting", "Apply 2 coats."),
    ("forcing a push", "Pass `--force-with-lease` to push.",
     "forcing a push", "Pass --force-with-lease to push."),
    ("reading config", "Read ~/.config/app.toml first.",
     "config is read", "Read `~/.config/app.toml` first."),
    ("splitting columns", "Split on \";\" and trim.",
     "splitting columns", "Split on ';' and trim."),
    ("normalising names", "Normalise the names to lowercase.",
     "normalizing names", "Normalize names to lower case."),
    # -- a negation that is said otherwise
    ("old logs", "Do not open the log file if it is old.",
     "old logs", "If the log file is old, do not open it."),
    ("wounds", "Do not salt the broth with the lid on.",
     "wounds", "The broth must not be salted with the lid on."),
    ("config", "Never manually edit the lock file.",
     "config", "Never edit the lock file manually."),
    ("filing a form", "If the form is not signed, return it.",
     "filing a form", "Unless the form is signed, return it."),
    ("files without a header", "Ask for the names.",
     "a file has no header", "Ask for the names."),
    ("cleaning", "Under no circumstances mix the two cleaners.",
     "cleaning", "Don't ever mix the two cleaners."),
    ("refunds", "Over 50 euros, ask the manager.", "refunds", "Ask the manager above 50 euros."),
    ("quoting", "Make sure the fields are quoted.", "quoting", "Ensure that you quote the fields."),
    ("retries", "Try up to 5 times.", "retries", "Try at most 5 times."),
    # -- other domains and longer ones
    ("prescribing for children", "Check the weight before choosing the dose, and write both down.",
     "prescribing for a child", "Before choosing the dose, check the weight and write both down."),
    ("drafting a lease", "State the deposit, the rent and the notice period.",
     "a lease is drafted", "State the rent, the deposit and the notice period."),
    ("the archive holds nested zip files", "Unpack the outer file, then list the inner ones.",
     "archives holding nested zip files", "Unpack the outer file, then the inner ones are listed."),
    ("tuning a piano", "Start from the A above middle C.",
     "a piano is tuned", "Begin from the A above middle C."),
    ("repairing a bicycle", "Turn off the lamp before you remove the wheel.",
     "a bicycle is repaired", "Before removing the wheel, switch off the lamp."),
    ("a refund is requested", "Ask for the order number if the mail does not name it.",
     "refunds are requested", "If the mail doesn't name the order number, ask for it."),
    ("exporting a CSV", "When exporting a CSV, quote the fields.",
     "exporting a CSV", "Quote the fields."),
    ("计算总价", "先换算货币。",
     "计算总价", "先换算货币"),
    ("Rechnungen schreiben", "Die Steuernummer nicht vergessen.",
     "Rechnungen schreiben", "Die Steuernummer nicht vergessen!"),
]  # fmt: skip

TWO: list[Pair] = [
    # -- do and do not
    ("exporting a CSV file", "Quote every field that holds a comma.",
     "exporting a CSV file", "Do not quote every field that holds a comma."),
    ("naming files", "Put the date in the name.",
     "naming files", "Never put the date in the name."),
    ("a failing test", "Rerun it.", "a failing test", "Don't rerun it."),
    ("choosing an editor", "Set tabs, not spaces.",
     "choosing an editor", "Set spaces, not tabs."),
    ("choosing an editor", "Use tabs instead of spaces.",
     "choosing an editor", "Use spaces instead of tabs."),
    ("a signed form", "File the form.", "an unsigned form", "File the form."),
    ("packing", "Pack with foam.", "packing", "Pack without foam."),
    ("deploying", "Avoid restarting the node.", "deploying", "Restart the node."),
    ("reviewing", "If the file is not empty, skip it.",
     "reviewing", "If the file is empty, do not skip it."),
    ("reviewing", "If the file is not empty, skip it.",
     "reviewing", "If the file is empty, skip it."),
    ("a non-empty list", "Sort it.", "an empty list", "Sort it."),
    ("calling the API", "The call cannot be repeated.",
     "calling the API", "The call can be repeated."),
    ("cooking rice", "Rinse it and do not salt it.",
     "cooking rice", "Salt it and do not rinse it."),
    ("a table", "All rows are not sorted.", "a table", "Rows are not sorted."),
    ("the lamp blinks", "Turn on the fan.", "the lamp blinks", "Turn off the fan."),
    ("merging", "Enable the check.", "merging", "Disable the check."),
    # -- conditions
    ("exporting a CSV file", "Quote the fields.", "exporting a TSV file", "Quote the fields."),
    ("deploying", "Tag the release.", "deploying", "Tag the release when the tests pass."),
    ("deploying", "Tag the release when the tests pass.",
     "deploying", "Tag the release when the tests fail."),
    ("deploying", "Tag the release when the tests pass.",
     "deploying", "Tag the release unless the tests pass."),
    ("deploying", "Tag the release before the tests.",
     "deploying", "Tag the release after the tests."),
    ("deploying", "Tag the release only when the tests pass.",
     "deploying", "Tag the release when the tests pass."),
    ("sorting", "Only admins may delete rows.", "sorting", "Admins may only delete rows."),
    ("rotating logs", "If the log rotates, restart the daemon.",
     "rotating logs", "If the daemon restarts, rotate the log."),
    ("rotating logs", "Compress before the upload.",
     "rotating logs", "Upload before you compress."),
    ("rotating logs", "Compress the file, then upload it.",
     "rotating logs", "Upload the file, then compress it."),
    ("uploads", "Wait until the lock is gone.", "uploads", "Wait while the lock is gone."),
    ("refunds over 50 euros", "Ask the manager.", "refunds", "Ask the manager."),
    ("a child has fever", "Call the doctor.", "an adult has fever", "Call the doctor."),
    ("booking for Ana", "Choose a window seat.", "booking for Bob", "Choose a window seat."),
    ("working on Linux", "Use the system font.", "working on Windows", "Use the system font."),
    ("winter", "Water weekly.", "summer", "Water weekly."),
    ("reading files", "Stop if a or b is missing.",
     "reading files", "Stop if a and b are missing."),
    ("a claim", "Return the form except when it is signed.",
     "a claim", "Return the form when it is signed."),
    ("a claim", "Pay even if the form is late.", "a claim", "Pay if the form is late."),
    # -- numbers, values, units, options
    ("calling the API", "Retry 3 times.", "calling the API", "Retry 5 times."),
    ("calling the API", "Wait 30 s.", "calling the API", "Wait 30 ms."),
    ("calling the API", "Wait 30 seconds.", "calling the API", "Wait 30 minutes."),
    ("calling the API", "Retry at least 3 times.", "calling the API", "Retry at most 3 times."),
    ("calling the API", "Use a timeout of 30 and 5 retries.",
     "calling the API", "Use a timeout of 5 and 30 retries."),
    ("importing", "Pass --strict to the loader.", "importing", "Pass --lenient to the loader."),
    ("importing", "Pass -v to the loader.", "importing", "Pass -V to the loader."),
    ("importing", "Split on ';' and trim.", "importing", "Split on ',' and trim."),
    ("importing", "Split on ; and trim.", "importing", "Split on | and trim."),
    ("importing", "Read conf/a.toml.", "importing", "Read conf/b.toml."),
    ("importing", "Values run from 0 to 1.", "importing", "Values run from -1 to 1."),
    ("python 3.11", "Run the shim.", "python 3.12", "Run the shim."),
    ("versions", "Pin numpy<2.", "versions", "Pin numpy>2."),
    ("dates", "Write them as 2024-05-01.", "dates", "Write them as 01.05.2024."),
    ("prices", "Round to two digits.", "prices", "Round to three digits."),
    ("prices", "Discount 5%.", "prices", "Discount 5."),
    ("bread", "Bake at 200 °C.", "bread", "Bake at 220 °C."),
    ("env", "Set LANG=C first.", "env", "Set LANG=C.UTF-8 first."),
    ("a menu", "Do not offer nuts but fruit.", "a menu", "Do not offer fruit but nuts."),
    ("nodes", "Do not stop and restart the node.", "nodes", "Restart the node and do not stop it."),
    ("nodes", "Stop if the node is up and not idle.",
     "nodes", "Stop if the node is not up and idle."),
    ("styles", "Use tabs instead of spaces.", "styles", "Do not use tabs and spaces."),
    ("styles", "Quote numbers and not dates.", "styles", "Do not quote numbers and dates."),
    ("files", "Never skip files without headers.", "files", "Skip files without headers."),
    ("refunds", "Over 50 euros, ask the manager.", "refunds", "Under 50 euros, ask the manager."),
    # -- hedged and flat
    ("a slow query", "An index is missing.", "a slow query", "An index may be missing."),
    ("a slow query", "An index is missing.", "a slow query", "Usually an index is missing."),
    ("a slow query", "An index is sometimes missing.",
     "a slow query", "An index is usually missing."),
    ("formatting", "Use two columns.", "formatting", "Consider using two columns."),
    ("formatting", "Use two columns.", "formatting", "Prefer two columns."),
    ("formatting", "Close the file.", "formatting", "Close the file if possible."),
    ("formatting", "Close the file.", "formatting", "Try to close the file."),
    ("estimates", "It takes 10 minutes.", "estimates", "It takes about 10 minutes."),
    ("rain", "The roof leaks.", "rain", "The roof seems to leak."),
    ("rain", "The roof leaks.", "rain", "The roof rarely leaks."),
    # -- who does what to what
    ("copying", "Copy local to remote.", "copying", "Copy remote to local."),
    ("clocks", "Convert the time from UTC to local.",
     "clocks", "Convert the time from local to UTC."),
    ("styles", "Use tabs in Makefiles and spaces in Python.",
     "styles", "Use spaces in Makefiles and tabs in Python."),
    ("meetings", "Ana writes to Bob.", "meetings", "Bob writes to Ana."),
    ("sorting", "Sort ascending.", "sorting", "Sort descending."),
    ("sorting", "Sort by name.", "sorting", "Sort by size."),
    ("sorting", "Take the first row.", "sorting", "Take the last row."),
    ("pruning", "Cut some branches.", "pruning", "Cut all branches."),
    ("pruning", "Cut the branches above the knot.",
     "pruning", "Cut the branches below the knot."),
    ("letters", "Sign with the full name.", "letters", "Sign with the first name."),
    ("upload", "compress", "compress", "upload"),
    ("计算总价", "先换算货币。", "计算总价", "不先换算货币。"),
    ("Rechnungen", "Die Nummer nicht drucken.", "Rechnungen", "Die Nummer drucken."),
    ("empty lessons", "", "empty lessons", ""),
]  # fmt: skip


@pytest.mark.parametrize("pair", ONE, ids=lambda pair: f"{pair[1]} / {pair[3]}")
def test_one_thing_said_in_two_ways(pair: Pair) -> None:
    a, b = features(*pair[:2]), features(*pair[2:])
    assert not conflict(a, b)
    assert same(a, b)
    assert same(b, a)


@pytest.mark.parametrize("pair", TWO, ids=lambda pair: f"{pair[1]} / {pair[3]}")
def test_two_things_are_kept_apart(pair: Pair) -> None:
    a, b = features(*pair[:2]), features(*pair[2:])
    assert not same(a, b)
    assert not same(b, a)


@pytest.mark.parametrize("pair", [*ONE, *TWO], ids=lambda pair: f"{pair[1]} / {pair[3]}")
def test_likeness_is_a_share_and_symmetric(pair: Pair) -> None:
    a, b = features(*pair[:2]), features(*pair[2:])
    assert 0.0 <= likeness(a, b) == likeness(b, a) <= 1.0


def test_no_entry_of_the_table_is_the_same_as_one_of_another_row() -> None:
    known = [features(*pair[:2]) for pair in ONE]
    texts = [pair[:2] for pair in ONE]
    assert len(set(texts)) == len(texts)
    wrong = [
        (texts[i], texts[j])
        for i in range(len(known))
        for j in range(i)
        if same(known[i], known[j])
    ]
    assert wrong == []


MIXED = "if not only a the file , . ; copy to from 30 s `x y` don't -v and or then unless of"
texts = st.text(max_size=80) | st.lists(
    st.sampled_from(MIXED.split()),
    max_size=14,
).map(" ".join)


@given(texts, texts)
def test_any_text_is_taken_and_is_the_same_as_itself(situation: str, lesson: str) -> None:
    one = features(situation, lesson)
    assert conflict(one, one) == ""
    assert same(one, one) == bool(one.lesson)


@given(texts, texts, texts, texts)
def test_sameness_has_no_direction(a: str, b: str, c: str, d: str) -> None:
    one, other = features(a, b), features(c, d)
    assert same(one, other) == same(other, one)
    assert bool(conflict(one, other)) == bool(conflict(other, one))
