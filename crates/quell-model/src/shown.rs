//! Escaping of text from outside before it is displayed.
//!
//! Problem: users choose the names of their threads, processes and cgroups, and a terminal obeys
//! the control characters in them. How: each character that a terminal or a page would obey, or
//! hide, is escaped. Limits: a backslash stays as it is, since names of cgroups have many: escaped
//! text is for reading and cannot be decoded again.

use std::borrow::Cow;
use std::fmt::Write;

/// The text with each character escaped that a terminal would obey and not show: control characters
/// (C0, DEL, C1) as `\n` or `\x1b`, characters that turn or hide other text as `\u{202e}`. The
/// result is one line for any text.
pub fn shown(text: &str) -> Cow<'_, str> {
    if !text.contains(obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        let written = match c {
            '\n' | '\r' | '\t' => write!(shown, "{}", c.escape_default()),
            _ if c.is_control() => write!(shown, "\\x{:02x}", u32::from(c)),
            _ if obeyed(c) => write!(shown, "{}", c.escape_unicode()),
            _ => shown.write_char(c),
        };
        debug_assert!(written.is_ok(), "a string takes all");
    }
    Cow::Owned(shown)
}

/// A JSON document with the same characters escaped in its strings: its meaning stays, and a
/// terminal shows it as it is.
pub fn shown_json(json: &str) -> Cow<'_, str> {
    // Serializers leave these characters in strings; line breaks and tabs outside strings are layout.
    let left = |c: char| obeyed(c) && !matches!(c, '\n' | '\r' | '\t');
    if !json.contains(left) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 8);
    for c in json.chars() {
        if !left(c) {
            shown.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            let written = write!(shown, "\\u{unit:04x}");
            debug_assert!(written.is_ok(), "a string takes all");
        }
    }
    Cow::Owned(shown)
}

fn obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Direction: marks, embeddings, overrides, isolates.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Ends of lines and paragraphs.
            | '\u{2028}' | '\u{2029}'
            // Characters without width.
            | '\u{200b}' | '\u{2060}' | '\u{feff}'
            // Tag characters, which are hidden letters.
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_stays_as_it_is() {
        for text in [
            "",
            "kworker/0:1-events",
            "system-getty\\x2dtty1.slice",
            "naïve 数据 🦀 👩\u{200d}🚀",
        ] {
            assert!(matches!(shown(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        let cases = [
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\x1b[2Jgone", "\\x1b[2Jgone"),
            ("\x1b]0;title\x07bell\0", "\\x1b]0;title\\x07bell\\x00"),
            ("del\x7f", "del\\x7f"),
            ("c1\u{9b}2J\u{85}", "c1\\x9b2J\\x85"),
            ("user\u{202e}txt.exe", "user\\u{202e}txt.exe"),
            ("\u{2066}x\u{2069}\u{61c}", "\\u{2066}x\\u{2069}\\u{61c}"),
            ("one\u{2028}two\u{feff}", "one\\u{2028}two\\u{feff}"),
            ("é\x1bé", "é\\x1bé"),
        ];
        for (text, right) in cases {
            assert_eq!(shown(text), right);
        }
    }

    #[test]
    fn json_says_the_same_and_shows_nothing_that_is_obeyed() {
        let names = ["plain é 🦀", "\x1b[2J\n\x7f\u{9b}2J\u{202e}\u{e0041}\"\\"];
        let json = serde_json::to_string_pretty(&names).unwrap();
        let text = shown_json(&json);
        assert!(!text.replace('\n', "").contains(obeyed), "{text}");
        assert!(
            text.contains("\\u007f\\u009b2J\\u202e\\udb40\\udc41"),
            "{text}"
        );
        let back: Vec<String> = serde_json::from_str(&text).unwrap();
        assert_eq!(back, names);
        assert!(matches!(shown_json("{\n  \"a\": 1\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_character_that_is_obeyed_is_left_and_others_are() {
        for c in '\0'..=char::MAX {
            let text = c.to_string();
            let out = shown(&text);
            assert!(!out.contains(obeyed), "{c:?}");
            assert!(obeyed(c) || out == text, "{c:?}");
        }
    }
}
