"""Names of users and tenants: how they are written, and which of them look like another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

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

    ``existing`` are the names that have as many characters: only those can look the same.
    """
    if unicodedata.normalize("NFKC", clean) != clean:
        raise BadRequest(f"This {kind} name has letters of a special form. Write it with the plain ones.")
    if len({_script_of(c) for c in clean if c.isalpha()} - EAST_ASIAN) > 1:
        raise BadRequest(
            f"A {kind} name has letters of one alphabet only, such as all Latin or all Cyrillic."
        )
    looks = _look_of(clean)
    for other in existing:
        if other != clean and _look_of(other) == looks:
            raise BadRequest(f"There is already a {kind} {other!r}, which looks the same.")


def _script_of(letter: str) -> str:
    """The first word of its Unicode name, which is that of its script: CYRILLIC SMALL LETTER A."""
    return unicodedata.name(letter, "unknown").partition(" ")[0]


def _look_of(name: str) -> str:
    """The same text for names that look the same."""
    return "".join(_latin_letter(c) for c in unicodedata.normalize("NFKC", name).casefold())


def _latin_letter(character: str) -> str:
    """The letter or digit of ASCII that it looks like; otherwise itself."""
    if character.isascii():
        return {"0": "o", "1": "l"}.get(character, character)
    return next((plain for plain, others in LOOKALIKES if character in others), character)


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
    ("l", "ǀ۱Ꮮᒪᛁⵏꓡꓲ𐊊𐌉𐌠𐔦𖼖𖼨"),
    ("m", "Ꮇᗰᛖꓟ𐊰𐌑"),
    ("n", "ոռꓠ𐔓"),
    ("o", "οσоօ۵०০੦૦ଠ୦௦౦೦ഠ൦๐໐ဝ၀ჿዐᴏᴑⲟⵔ〇ꓳꬽ𐊒𐊫𐐬𐓪𐔖𑓐𑣈𑣗𑣠"),
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
)
