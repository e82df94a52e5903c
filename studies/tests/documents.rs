//! Documents are held to the program: commands and configurations of the guide parse, links lead somewhere,
//! and tests that the specification names exist.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use clap::Parser;
use clap::error::ErrorKind;
use std::fs;
use std::path::{Path, PathBuf};

/// Programs of other projects that the guide uses.
const OTHERS: [&str; 7] = [
    "cargo",
    "curl",
    "install",
    "journalctl",
    "rm",
    "systemctl",
    "uname",
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Collects the files below a folder with names that end in one of `ends`.
fn files(folder: &Path, ends: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" {
            files(&path, ends, found);
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// The repository's documents: those at its root, and those below these folders.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository("")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() && path.extension().is_some_and(|it| it == "md") {
            found.push(path);
        }
    }
    for folder in ["docs", "scenarios", "packaging", "crates", "studies"] {
        files(&repository(folder), &[".md"], &mut found);
    }
    assert!(found.len() > 30, "{found:?}");
    found.sort();
    found
}

fn guide() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&repository("docs/guide"), &[".md"], &mut found);
    assert!(found.len() > 8, "{found:?}");
    found.sort();
    found
}

/// A command's words, as a shell splits them: blanks, and both kinds of quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in command.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '"' || c == '\'' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == ' ' => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "a quote is open: {command}");
    words.extend(word);
    words
}

/// What a program says of arguments that it does not take; `None` where they only ask for help or the
/// version.
fn not_understood(wrong: clap::Error) -> Option<String> {
    let told = matches!(
        wrong.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    (!told).then(|| wrong.to_string())
}

/// Why a command of the guide is wrong; `None` where it is right.
fn mistake(command: &str, dev: &str) -> Option<String> {
    let words = words(command);
    let words = words.strip_prefix(&["sudo".to_string()]).unwrap_or(&words);
    let program = words.first()?.as_str();
    match program {
        "quell" => not_understood(quell::cli::Cli::try_parse_from(words).err()?),
        "quell-studies" => not_understood(quell_studies::cli::Cli::try_parse_from(words).err()?),
        "./dev" => {
            let known = words
                .get(1)
                .is_some_and(|word| dev.contains(&format!("\n    {word})\n")));
            (!known).then(|| "`./dev` has no such command".to_string())
        }
        _ => (!OTHERS.contains(&program)).then(|| format!("what is `{program}`?")),
    }
}

#[test]
fn every_command_of_the_guide_is_one() {
    let dev = read(&repository("dev"));
    let mut commands = 0;
    for page in guide() {
        for line in read(&page).lines() {
            let Some(command) = line.strip_prefix("$ ") else {
                continue;
            };
            commands += 1;
            if let Some(why) = mistake(command, &dev) {
                panic!("{}: `{command}`: {why}", page.display());
            }
        }
    }
    assert!(commands > 40, "{commands}");
}

#[test]
fn a_wrong_command_is_noticed() {
    let dev = read(&repository("dev"));
    for wrong in [
        "quell statsu",
        "quell status --window 0",
        "./dev demos",
        "mv x",
    ] {
        assert!(mistake(wrong, &dev).is_some(), "{wrong}");
    }
    let quoted = "sudo quell bench mixed --policy \"eevdf,share=quell sched --share\"";
    assert_eq!(words(quoted).len(), 6);
    assert_eq!(mistake(quoted, &dev), None);
}

#[test]
fn every_configuration_of_the_guide_is_right() {
    let mut examples = 0;
    for page in guide() {
        let text = read(&page);
        for example in text.split("```toml\n").skip(1) {
            let example = example.split("```").next().unwrap();
            quell_agent::parse(&page, example).unwrap();
            examples += 1;
        }
    }
    assert!(examples > 4, "{examples}");
}

#[test]
fn every_link_of_the_documents_leads_to_a_file() {
    for document in documents() {
        let text = read(&document);
        let folder = document.parent().unwrap();
        // With every split at a fence, every second part is within a block of code.
        for text in text.split("```").step_by(2) {
            for link in text.split("](").skip(1) {
                let link = link.split([')', '#', ' ']).next().unwrap();
                let elsewhere = link.is_empty() || link.contains("://");
                assert!(
                    elsewhere || folder.join(link).exists(),
                    "{}: no {link}",
                    document.display()
                );
            }
        }
    }
}

#[test]
fn every_document_that_the_sources_name_exists() {
    let mut sources = documents();
    for folder in ["crates", "studies", "scenarios", "packaging", "lab"] {
        let ends = [".rs", ".c", ".h", ".toml", ".service"];
        files(&repository(folder), &ends, &mut sources);
    }
    for source in sources {
        let text = read(&source);
        for (at, _) in text.match_indices("docs/") {
            let before = text[..at].chars().next_back();
            // The text is a part of another path: it does not begin at the root of the repository.
            if before.is_some_and(|c| c.is_alphanumeric() || "/._".contains(c)) {
                continue;
            }
            let name = text[at..]
                .split(|c: char| !(c.is_alphanumeric() || "/._-".contains(c)))
                .next()
                .unwrap();
            let name = name.trim_end_matches('.');
            assert!(
                !name.ends_with(".md") || repository(name).exists(),
                "{}: no {name}",
                source.display()
            );
        }
    }
}

#[test]
fn every_test_that_the_specification_names_exists() {
    let mut sources = Vec::new();
    for folder in ["crates", "studies"] {
        files(&repository(folder), &[".rs"], &mut sources);
    }
    let code: String = sources.iter().map(|source| read(source)).collect();
    let specification = read(&repository("docs/design/specification.md"));
    let mut tests = 0;
    for row in specification.lines().filter(|line| line.starts_with('|')) {
        let last = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        for name in last.split('`').skip(1).step_by(2) {
            let is_function = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if is_function {
                assert!(code.contains(&format!("fn {name}(")), "no test {name}");
                tests += 1;
            }
        }
    }
    assert!(tests > 40, "{tests}");
}

#[test]
fn every_identifier_that_the_glossary_names_exists() {
    let mut sources = Vec::new();
    for folder in ["crates", "studies"] {
        files(&repository(folder), &[".rs", ".c", ".h"], &mut sources);
    }
    let code: String = sources.iter().map(|source| read(source)).collect();
    let known: std::collections::HashSet<&str> = code
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .collect();
    let glossary = read(&repository("docs/design/glossary.md"));
    let mut identifiers = 0;
    for name in glossary.split('`').skip(1).step_by(2) {
        let name = name.trim_start_matches("struct ").trim_end_matches("()");
        if name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            assert!(known.contains(name), "no identifier `{name}`");
            identifiers += 1;
        }
    }
    assert!(identifiers > 40, "{identifiers}");
}

#[test]
fn documents_are_as_long_as_readers_bear() {
    for document in documents() {
        for (number, line) in read(&document).lines().enumerate() {
            let table = line.trim_start().starts_with('|');
            assert!(
                table || line.chars().count() <= 110,
                "{}:{}: more than 110 columns",
                document.display(),
                number + 1
            );
        }
    }
    let readme = read(&repository("README.md"));
    assert!(readme.lines().count() <= 90);
    let scheduler = read(&repository("docs/design/scheduler.md"));
    assert!(scheduler.split_whitespace().count() <= 1500);
}
