"""Names of users and tenants: how they are written, and which of them look like another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from types import MappingProxyType

from agentapp.errors import BadRequest

MAX_NAME_CHARS = 64
# Scripts that are written together, and beside Latin too. Their letters look like nobody else's.
EAST_ASIAN = frozenset(
    ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "BOPOMOFO", "HANGUL")
)


def normalise_name(name: str) -> str:
    """The name as it is looked up: in lower case, so that Ann and ann are one person."""
    return name.strip().casefold()


def check_name(name: str, kind: str) -> str:
    """The name as it is stored."""
    clean = normalise_name(name)
    if not 1 <= len(clean) <= MAX_NAME_CHARS or not all(c.isalnum() or c in "._-@+" for c in clean):
        raise BadRequest(
            f"A {kind} name has 1 to {MAX_NAME_CHARS} letters or digits; . - _ + and @ are fine too."
        )
    return clean


def check_new_name(clean: str, kind: str, existing: Iterable[str]) -> None:
    """Refuse a name that could be taken for another. Names from before there was this check stay valid.

    ``existing`` are at least the names whose length is among `lengths_of_lookalikes`.
    """
    if unicodedata.normalize("NFKC", clean) != clean:
        raise BadRequest(f"This {kind} name has letters of a special form. Write it with the plain ones.")
    # The digits 0 to 9 are used with every alphabet, and any others only with their own.
    if len({_script_of(c) for c in clean if c.isalpha() or not c.isascii()} - EAST_ASIAN) > 1:
        raise BadRequest(
            f"A {kind} name has letters of one alphabet only, such as all Latin or all Cyrillic,"
            " and no digits of another one."
        )
    looks = look_of(clean)
    for other in existing:
        if other != clean and look_of(other) == looks:
            # Not which one: an admin who adds a user must not read names of another tenant.
            raise BadRequest(f"There is already a {kind} whose name looks the same.")


def lengths_of_lookalikes(clean: str) -> tuple[int, int]:
    """How many characters a name has at least and at most that looks like this one.

    So that not every name there is has to be compared.
    """
    look = look_of(clean)
    return len(look) - sum(look.count(long) for _, long in PAIRS), len(look)


def _script_of(character: str) -> str:
    """The first word of its Unicode name, which is that of its script: CYRILLIC SMALL LETTER A."""
    # Two sets of digits have names of another form: ARABIC-INDIC DIGIT ONE, EXTENDED ARABIC-INDIC DIGIT ONE.
    name = unicodedata.name(character, "unknown").removeprefix("EXTENDED ")
    return name.partition(" ")[0].removesuffix("-INDIC")


def look_of(name: str) -> str:
    """The same text for names that look the same."""
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).casefold()
    look = name.translate(LATIN_LETTERS)
    for short, long in PAIRS:
        look = look.replace(short, long)
    return look


# Letters that look like two others. Names are compared in the longer form: of vvv nobody could say whether
# its short form is wv or vw. Not d and cl, which are less alike: among 15,000 names
# of people, five pairs look the same by m and w, and ten more would by d: Clara and Dara, Clayton and Dayton.
PAIRS = (("m", "rn"), ("w", "vv"))

# What Unicode's confusables.txt says of letters and digits that a name can have, as it is stored.
LOOKALIKES = (
    ("2", "ᒿꛯ"),
    ("3", "𑣊𖼻"),
    ("4", "Ꮞ"),
    ("6", "бᏮ𑣕"),
    ("7", "𑣆"),
    ("8", "ȣ৪੪𐌚"),
    ("9", "৭੧୨൭𑣌𑣖"),
    ("a", "ɑαаᎪᗅꓮ𐊠𖽀"),
    ("b", "ᏏᏴᑲᖯᗷꓐ𐊂𐊡𐌁"),
    ("c", "сᏟᴄⲥꓚ𐊢𐌂𐐽𐔜𑣩𑣲"),
    ("d", "ԁᎠᏧᑯᗞᗪꓒꓓ"),
    ("e", "еҽᎬⴹꓰꬲ𐊆"),
    ("f", "քᖴẝꓝꞙꬵ𐊇𐊥𐔥𑣂"),
    ("g", "ƍɡցᏀᏳᶃꓖ"),
    ("h", "һհᎻᏂᕼꓧ𐋏"),
    ("i", "ıɩɪιіӏᎥꙇ𑣃"),
    ("j", "ϳјᎫᒍꓙ"),
    ("k", "Ꮶᛕꓗ𐔘"),
    ("l", "1ǀ۱Ꮮᒪᛁⵏꓡꓲ𐊊𐌉𐌠𐔦𖼖𖼨"),
    ("m", "Ꮇᗰᛖꓟ𐊰𐌑"),
    ("n", "ոռꓠ𐔓"),
    ("o", "0οσоօ۵०০੦૦ଠ୦௦౦೦ഠ൦๐໐ဝ၀ჿዐᴏᴑⲟⵔ〇ꓳꬽ𐊒𐊫𐐬𐓪𐔖𑓐𑣈𑣗𑣠"),
    ("p", "ρрᏢᑭⲣꓑ𐊕"),
    ("q", "ԛգզⵕ"),
    ("r", "гᎡᏒᖇᴦⲅꓣꭇꭈ𖼵"),
    ("s", "ƽѕᏕᏚꓢꜱ𐊖𐑈𑣁𖼺"),
    ("t", "Ꭲꓔ𐊗𐊱𐌕𖼊"),
    ("u", "ʋυսሀᑌᴜꓴꞟꭎꭒ𐓶𑣘𖽂"),
    ("v", "νѵ۷Ꮩᐯᴠⴸꓦꛟ𐔝𑜆𑣀𖼈"),
    ("w", "ɯѡԝաᎳᏔᴡꓪ𑜊𑜎𑜏𑣦𑣯"),
    ("x", "хᕁᕽᚷⵝꓫ𐊐𐊴𐌗𐌢𐔧𑣬"),
    ("y", "ɣʏγуүყᎩᎽᶌỿꓬꭚ𐊲𑣜𖽃"),
    ("z", "Ꮓᴢꓜ𐋵𑣄𑣥"),
    # From right to left: as escapes, because editors would turn these lines around.
    ("l", "\u05d5\u05df\u0627\u0661\u07ca\U0001e8c7"),
    ("o", "\u05e1\u0647\u0665\u06be\u06c1\u06d5\u07c0"),
    ("v", "\u05d8\u0667"),
)
LATIN_LETTERS = MappingProxyType(
    str.maketrans({other: plain for plain, others in LOOKALIKES for other in others})
)
