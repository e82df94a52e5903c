//! What the verifier asks of a global function of BPF and the compiler does not: every parameter is used.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::Path;

/// The C sources of a folder.
fn sources(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let sources = files.filter(|file| file.extension().is_some_and(|it| it == "h" || it == "c"));
    sources
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

/// The functions that are marked as global: the name, the parameters and the body of each.
fn subprograms(source: &str) -> Vec<(&str, &str, &str)> {
    let parts = source.split("__global_subprog ").skip(1);
    let subprogram = |part| -> Option<(&str, &str, &str)> {
        let part: &str = part;
        let (head, rest) = part.split_once("\n{\n")?;
        // The macro's own definition, and declarations.
        if head.contains([';', '#']) {
            return None;
        }
        let (name, parameters) = head.split_once('(')?;
        let body = rest.split("\n}\n").next()?;
        let parameters = parameters.trim_end().trim_end_matches(')');
        Some((name.split_whitespace().last()?, parameters, body))
    };
    parts.filter_map(subprogram).collect()
}

/// clang leaves the register of a parameter that the function does not use as it is, and the verifier refuses
/// a call with such a register: under some options only, as it looks at a call only where it can come to it.
#[test]
fn global_functions_use_their_parameters() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = [
        "src/bpf",
        "../quell-bpf/include/quell",
        "../quell-linux/src/bpf",
    ];
    let mut number = 0;
    for source in folders.iter().flat_map(|it| sources(&here.join(it))) {
        for (name, parameters, body) in subprograms(&source) {
            for parameter in parameters.split(',').filter(|it| it.trim() != "void") {
                let words = |text: &str| -> Vec<String> {
                    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                    words
                        .filter(|it| !it.is_empty())
                        .map(str::to_string)
                        .collect()
                };
                let mut named = words(parameter).into_iter().rev();
                let parameter = named.find(|it| !it.starts_with("__")).unwrap();
                assert!(
                    words(body).contains(&parameter),
                    "{name}() does not use `{parameter}`"
                );
                number += 1;
            }
        }
    }
    assert!(number > 100, "{number}");
}
