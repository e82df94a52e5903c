//! Wrong input ends with exit code 2 and a message with what would be right.

use std::process::Command;

#[test]
fn wrong_input_is_told_and_nothing_is_begun() {
    let cases: [(&[&str], &[&str]); 7] = [
        (&["nothing"], &["nothing", "--help"]),
        (
            &["overhead", "--policy", "default,fifo"],
            &["`fifo`", "--on sim"],
        ),
        (&["overhead", "--seconds", "2"], &["--seconds"]),
        (
            &[
                "reproduce",
                "dasec-fig7",
                "--on",
                "vm",
                "--policy",
                "default,ideal",
            ],
            &["`ideal`", "--on sim"],
        ),
        (
            &["hunt", "--policy", "eevdf"],
            &["--policy", "at least one side"],
        ),
        (&["harm", "--only", "no-such"], &["--only", "no-such"]),
        (
            &["shares", "--on", "host", "--like-real"],
            &["--like-real", "--on sim"],
        ),
    ];
    for (arguments, says) in cases {
        let output = Command::new(env!("CARGO_BIN_EXE_quell-studies"))
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.starts_with("quell-studies: "), "{error}");
        for word in says {
            assert!(error.contains(word), "{arguments:?}: {error}");
        }
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
