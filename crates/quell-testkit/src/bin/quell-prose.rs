//! Reads the prose of every tracked source and document; `./dev lint` runs it.
//!
//! It reports, as `FILE:LINE: what`:
//! - lines of more than 110 columns in comments, documents and C; rows of tables and C's strings are left
//!   out, and so is Rust's code: rustfmt breaks what can be broken;
//! - paragraphs of comments and documents that are one word ("They.");
//! - sentences that begin without a subject ("Who waits ...", "That is ...", "Nor ..."), see [`headless`].
//!
//! The change log and the records in `docs/results` are read for their columns only. At the end it counts
//! what it found by kind and by part of the project, and exits with 1 where it found anything.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::{Command, ExitCode};

/// The longest line that readers bear.
const COLUMNS: usize = 110;

/// Words that stand for a subject whose type the sentence does not name.
const PRONOUNS: [&str; 7] = [
    "who", "whose", "whom", "whoever", "whomever", "which", "nor",
];

/// Verbs before which "that" is a subject; before a noun it is an article or a conjunction.
const VERBS: [&str; 43] = [
    "is", "isn't", "was", "are", "were", "has", "had", "have", "does", "did", "do", "can",
    "cannot", "could", "may", "might", "must", "will", "would", "should", "needs", "makes",
    "takes", "goes", "comes", "holds", "means", "happens", "keeps", "leaves", "gives", "costs",
    "depends", "ends", "says", "counts", "allows", "changes", "too", "alone", "also", "only",
    "way",
];

/// What can be wrong with prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Long,
    OneWord,
    Headless,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Long, Kind::OneWord, Kind::Headless];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Long => "a line of more than 110 columns",
            Kind::OneWord => "a paragraph of one word",
            Kind::Headless => "a sentence without a subject",
        })
    }
}

/// One thing that was found: the line, counted from 1, its kind, and the words that show it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    line: usize,
    kind: Kind,
    words: String,
}

/// The languages whose comments it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Rust,
    C,
}

/// One line of a source.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Line {
    /// What of the line is comment, without its marks.
    comment: Option<Comment>,
    /// Whether it has a part of a string literal.
    string: bool,
    /// Whether it has code, strings among it.
    code: bool,
}

/// The comment of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Comment {
    /// Comments of the same group may be parts of one paragraph: a block's lines are, and lines that begin
    /// with the same mark.
    group: Group,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Lines after `//`, `///` or `//!`.
    Lines(&'static str),
    /// A `/* */` comment, by the line that it begins on.
    Block(usize),
}

/// Lines of prose that belong together, each with its number; `label` where it stands beside code.
#[derive(Debug, Default)]
struct Paragraph {
    lines: Vec<(usize, String)>,
    label: bool,
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tracked = Command::new("git")
        .args(["ls-files", "-z", "--", "*.rs", "*.c", "*.h", "*.md"])
        .current_dir(&root)
        .output();
    let tracked = match tracked {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => {
            eprintln!("git: {}", String::from_utf8_lossy(&output.stderr).trim());
            return ExitCode::from(2);
        }
        Err(e) => {
            eprintln!("git: {e}");
            return ExitCode::from(2);
        }
    };
    let tracked = String::from_utf8_lossy(&tracked);
    let mut counts: BTreeMap<String, [usize; Kind::ALL.len()]> = BTreeMap::new();
    for file in tracked.split_terminator('\0') {
        let text = match std::fs::read_to_string(root.join(file)) {
            Ok(text) => text,
            // Removed, and git not told yet.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => {
                eprintln!("{file}: {e}");
                return ExitCode::from(2);
            }
        };
        for found in read(file, &text) {
            println!("{file}:{}: {}: {}", found.line, found.kind, found.words);
            counts.entry(part(file)).or_default()[found.kind as usize] += 1;
        }
    }
    println!("{}", summary(&counts));
    ExitCode::from(u8::from(!counts.is_empty()))
}

/// The part of the project that a file belongs to: its crate, or the folder at the root.
fn part(file: &str) -> String {
    let depth = if file.starts_with("crates/") { 2 } else { 1 };
    let folders: Vec<&str> = file.split('/').collect();
    folders[..depth.min(folders.len())].join("/")
}

fn summary(counts: &BTreeMap<String, [usize; Kind::ALL.len()]>) -> String {
    let mut text = String::new();
    for kind in Kind::ALL {
        let by_part = counts.iter().map(|(part, of)| (part, of[kind as usize]));
        let parts: Vec<String> = by_part
            .clone()
            .filter(|(_, count)| *count > 0)
            .map(|(part, count)| format!("{part} {count}"))
            .collect();
        let all: usize = by_part.map(|(_, count)| count).sum();
        text += &format!("{all} x {kind}");
        if !parts.is_empty() {
            text += &format!(": {}", parts.join(", "));
        }
        text.push('\n');
    }
    text.trim_end().to_string()
}

/// What is wrong with the prose of a file, by line.
fn read(file: &str, text: &str) -> Vec<Finding> {
    let language = match file.rsplit('.').next() {
        Some("rs") => Some(Language::Rust),
        Some("c" | "h") => Some(Language::C),
        _ => None,
    };
    let source = language.map(|language| scan(text, language));
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let exempt = match &source {
            Some(lines) => {
                let unbreakable = language == Some(Language::Rust) || lines[index].string;
                lines[index].comment.is_none() && unbreakable
            }
            None => line.trim_start().starts_with('|'),
        };
        if columns(line) > COLUMNS && !exempt {
            found.push(Finding {
                line: index + 1,
                kind: Kind::Long,
                words: columns(line).to_string(),
            });
        }
    }
    let paragraphs = match source {
        Some(lines) => paragraphs_of_comments(&lines),
        None if file == "CHANGELOG.md" || file.starts_with("docs/results/") => Vec::new(),
        None => paragraphs(text.lines().enumerate().map(|(at, line)| (at + 1, line))),
    };
    for paragraph in &paragraphs {
        found.extend(judge(paragraph));
    }
    found.sort();
    found
}

/// How wide a line is shown, with a tab stop at every eighth column.
fn columns(line: &str) -> usize {
    line.chars().fold(0, |at, c| match c {
        '\t' => (at / 8 + 1) * 8,
        _ => at + 1,
    })
}

/// Tells comments, strings and code of a source apart, line by line.
fn scan(text: &str, language: Language) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let mut lines = vec![Line::default()];
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest {
            ['/', '/', ..] => line_comment(rest, &mut lines),
            ['/', '*', ..] => block_comment(rest, language, &mut lines),
            ['"', ..] => string(rest, 1, string_end, &mut lines),
            ['\'', ..] => character(rest, language, &mut lines),
            ['r', ..] if language == Language::Rust && begins_word(&chars, at) => {
                raw_string(rest, &mut lines)
            }
            _ => 0,
        };
        if length > 0 {
            at += length;
            continue;
        }
        match rest[0] {
            '\n' => lines.push(Line::default()),
            c if c.is_whitespace() => {}
            _ => last(&mut lines).code = true,
        }
        at += 1;
    }
    lines
}

fn last(lines: &mut Vec<Line>) -> &mut Line {
    if lines.is_empty() {
        lines.push(Line::default());
    }
    let end = lines.len() - 1;
    &mut lines[end]
}

/// Whether the letter at this place is a word's first, but for the `b` or `c` of a byte or C string.
fn begins_word(chars: &[char], at: usize) -> bool {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    match chars[..at] {
        [.., before, 'b' | 'c'] => !is_word(&before),
        [.., before] => !is_word(&before),
        [] => true,
    }
}

/// A comment up to the end of its line; its length in characters.
fn line_comment(rest: &[char], lines: &mut Vec<Line>) -> usize {
    let length = rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
    let text: String = rest[..length].iter().collect();
    let mark = ["///", "//!", "//"].into_iter();
    let mark = mark
        .clone()
        .find(|mark| text.starts_with(mark))
        .unwrap_or("//");
    last(lines).comment = Some(Comment {
        group: Group::Lines(mark),
        text: text[mark.len()..].trim().to_string(),
    });
    length
}

/// A comment between `/*` and `*/`, nested ones within it in Rust; its length in characters.
fn block_comment(rest: &[char], language: Language, lines: &mut Vec<Line>) -> usize {
    let mut depth = 0;
    let mut length = 0;
    while length < rest.len() {
        match rest[length..] {
            ['/', '*', ..] if depth == 0 || language == Language::Rust => {
                depth += 1;
                length += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                length += 2;
                if depth == 0 {
                    break;
                }
            }
            _ => length += 1,
        }
    }
    let text: String = rest[..length].iter().collect();
    let group = Group::Block(lines.len());
    let inner = text.trim_start_matches("/*").trim_end_matches("*/");
    for (index, line) in inner.split('\n').enumerate() {
        if index > 0 {
            lines.push(Line::default());
        }
        let text = line.trim();
        let text = match text.strip_prefix('*') {
            Some(text) if index > 0 => text.trim(),
            _ => text,
        };
        last(lines).comment = Some(Comment {
            group,
            text: text.to_string(),
        });
    }
    length
}

/// A string literal that begins with so many characters; its length.
fn string(
    rest: &[char],
    begins: usize,
    ends: impl Fn(&[char]) -> usize,
    lines: &mut Vec<Line>,
) -> usize {
    let length = begins + ends(&rest[begins..]);
    for c in &rest[..length] {
        if *c == '\n' {
            lines.push(Line::default());
        }
        let line = last(lines);
        line.code = true;
        line.string = true;
    }
    length
}

/// The characters up to and with the quote that ends a string.
fn string_end(rest: &[char]) -> usize {
    let mut at = 0;
    while at < rest.len() {
        match rest[at] {
            '"' => return at + 1,
            '\\' => at += 2,
            _ => at += 1,
        }
    }
    rest.len()
}

/// A raw string of Rust, from its `r` on; 0 where there is none.
fn raw_string(rest: &[char], lines: &mut Vec<Line>) -> usize {
    let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
    if rest.get(1 + hashes) != Some(&'"') {
        return 0;
    }
    let ends = |rest: &[char]| {
        let mut end = vec!['"'];
        end.extend(std::iter::repeat_n('#', hashes));
        let at = rest.windows(end.len()).position(|at| at == &end[..]);
        at.map_or(rest.len(), |at| at + end.len())
    };
    string(rest, 2 + hashes, ends, lines)
}

/// A character literal; 0 where the quote begins a lifetime.
fn character(rest: &[char], language: Language, lines: &mut Vec<Line>) -> usize {
    let length = match rest {
        ['\'', '\\', escaped @ ..] => {
            let end = escaped.iter().skip(1).position(|c| *c == '\'');
            end.map_or(0, |end| end + 4)
        }
        ['\'', _, '\'', ..] => 3,
        _ if language == Language::C => 1,
        _ => 0,
    };
    if length > 0 {
        last(lines).code = true;
    }
    length
}

/// The paragraphs of a source's comments.
fn paragraphs_of_comments(lines: &[Line]) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(first) = &lines[at].comment else {
            at += 1;
            continue;
        };
        let label = lines[at].code;
        let mut block = Vec::new();
        while let Some(comment) = lines.get(at).and_then(|line| line.comment.as_ref()) {
            let beside = lines[at].code && matches!(comment.group, Group::Lines(_));
            if comment.group != first.group || (beside && !block.is_empty()) {
                break;
            }
            block.push((at + 1, comment.text.as_str()));
            at += 1;
            if beside {
                break;
            }
        }
        let in_block = paragraphs(block.into_iter());
        found.extend(in_block.into_iter().map(|it| Paragraph { label, ..it }));
    }
    found
}

/// The paragraphs of Markdown, without headings, tables and code.
fn paragraphs<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let mut open = Paragraph::default();
    let mut fenced = false;
    for (number, line) in lines {
        let text = line.trim();
        let fence = text.starts_with("```");
        fenced ^= fence;
        let item = ["- ", "* ", "+ "]
            .into_iter()
            .find_map(|mark| text.strip_prefix(mark))
            .or_else(|| {
                text.split_once(". ")
                    .filter(|it| is_number(it.0))
                    .map(|it| it.1)
            });
        let code = open.lines.is_empty() && item.is_none() && line.starts_with("    ");
        let prose = !(fence || fenced || code || text.is_empty() || text.starts_with(['#', '|']));
        if item.is_some() || !prose {
            found.push(std::mem::take(&mut open));
        }
        if prose {
            open.lines.push((number, item.unwrap_or(text).to_string()));
        }
    }
    found.push(open);
    found.retain(|paragraph| !paragraph.lines.is_empty());
    found
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit())
}

/// What is wrong with a paragraph.
fn judge(paragraph: &Paragraph) -> Vec<Finding> {
    let words = paragraph.lines.iter().flat_map(|(number, text)| {
        let words = text.split_whitespace();
        words.map(|word| (*number, word))
    });
    let words: Vec<(usize, &str)> = words.collect();
    let mut found = Vec::new();
    if let [(line, word)] = words[..] {
        let is_word = word.chars().any(char::is_alphabetic) && !word.contains(['`', '[', '<', '/']);
        if is_word && !paragraph.label {
            found.push(Finding {
                line,
                kind: Kind::OneWord,
                words: word.to_string(),
            });
        }
    }
    let mut begins = 0;
    for at in 0..words.len() {
        let next = words.get(at + 1);
        if next.is_none_or(|(_, next)| ends_sentence(words[at].1, next)) {
            let sentence = &words[begins..=at];
            if headless(sentence) {
                let shown = &sentence[..sentence.len().min(6)];
                let shown: Vec<&str> = shown.iter().map(|(_, word)| *word).collect();
                found.push(Finding {
                    line: sentence[0].0,
                    kind: Kind::Headless,
                    words: shown.join(" "),
                });
            }
            begins = at + 1;
        }
    }
    found
}

/// Whether a sentence ends between two words.
fn ends_sentence(word: &str, next: &str) -> bool {
    let end = word.trim_end_matches([')', '"', '*', '_', '`']);
    let begin = next.trim_start_matches(['(', '"', '*', '_', '`', '[']);
    end.ends_with(['.', '!', '?']) && begin.starts_with(|c: char| c.is_uppercase())
}

/// Whether a sentence begins with a pronoun for what it does not name; questions may begin so.
fn headless(sentence: &[(usize, &str)]) -> bool {
    let is_question = sentence.last().is_some_and(|(_, word)| word.ends_with('?'));
    let word = |index: usize| {
        let (_, word) = sentence.get(index)?;
        let plain = word.trim_matches(|c: char| !c.is_alphanumeric());
        (!word.contains('`')).then(|| plain.to_lowercase())
    };
    let words = [word(0), word(1), word(2)].map(Option::unwrap_or_default);
    match words.each_ref().map(String::as_str) {
        [first, ..] if PRONOUNS.contains(&first) => !is_question,
        ["that", second, _] => VERBS.contains(&second),
        ["so", "many", _] | ["as", "is", _] | ["as", "that", "is"] => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<(usize, Kind)> {
        let found = read(file, text).into_iter();
        found.map(|it| (it.line, it.kind)).collect()
    }

    #[test]
    fn comments_are_told_from_strings_and_code() {
        let rust = "let a = \"// Who\"; // which\n\
            let b = r#\"\" // Who\n\"#; /* Nor /* x */ y */\n\
            let c: &'static str = '\"'; // That is\n\
            let d = b'\\''; // So many\n";
        let texts: Vec<Option<String>> = scan(rust, Language::Rust)
            .into_iter()
            .map(|line| line.comment.map(|it| it.text))
            .collect();
        let text = |text: &str| Some(text.to_string());
        assert_eq!(
            texts,
            [
                text("which"),
                None,
                text("Nor /* x */ y"),
                text("That is"),
                text("So many"),
                None
            ]
        );
        let c = "char a = '\"'; /* Who\n\t * waits */ x = \"/*\"; // nor\n";
        let headless = [(1, Kind::Headless), (2, Kind::Headless)];
        assert_eq!(found("a.c", c), headless);
    }

    #[test]
    fn long_lines_are_found_but_for_strings_and_tables() {
        let long = "x".repeat(COLUMNS);
        let text = format!("// a {long}\nlet a = \"{long}\";\n{long}1\n");
        assert_eq!(found("a.rs", &text), [(1, Kind::Long)]);
        assert_eq!(found("a.c", &text), [(1, Kind::Long), (3, Kind::Long)]);
        assert_eq!(found("a.h", &format!("\t{}\n", &long[8..])), []);
        let tabs = format!("\t{}\n", &long[7..]);
        assert_eq!(found("a.h", &tabs), [(1, Kind::Long)]);
        let document = format!("|{long}|\n\n{long} yes\n");
        assert_eq!(found("page.md", &document), [(3, Kind::Long)]);
        assert_eq!(found("docs/results/lab.md", &document), [(3, Kind::Long)]);
    }

    #[test]
    fn paragraphs_of_one_word_are_found_but_for_headings_and_labels() {
        let text = "/// They.\n///\n/// # Errors\n/// Never at all.\nfn a() {} // built-in\n\
            //! Where\n//! it is.\n";
        assert_eq!(found("a.rs", text), [(1, Kind::OneWord)]);
        let document = "# Title\n\nThey.\n\n- `a`\n- two words\n\n```\nThey.\n```\n\n    They.\n";
        assert_eq!(found("page.md", document), [(3, Kind::OneWord)]);
        assert_eq!(found("CHANGELOG.md", document), []);
    }

    #[test]
    fn sentences_without_a_subject_are_found() {
        for bad in [
            "Who waits goes first.",
            "A thread waits. Nor does it run.",
            "(Which of them is said.)",
            "The first. That is late.",
            "- Whose turn it is.",
            "So many run.",
            "As that is global.",
        ] {
            assert_eq!(found("a.md", bad), [(1, Kind::Headless)], "{bad}");
        }
        for good in [
            "Who is it for?",
            "That thread waits, as is usual.",
            "A thread that waits, which is late, e.g. who.",
            "`who` lists sessions.",
            "That the host is idle is seen.",
        ] {
            assert_eq!(found("a.md", good), [], "{good}");
        }
        let over_lines = "// A thread waits.\n// That\n// is late.\n";
        assert_eq!(found("a.rs", over_lines), [(2, Kind::Headless)]);
    }
}
