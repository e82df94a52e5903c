//! The command line as users see it: its output and its exit codes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::path::Path;
use std::process::Command;

/// Runs the program; gives its exit code, its stdout and its stderr.
fn said(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(args)
        .env(
            "QUELL_LOCK",
            concat!(env!("CARGO_TARGET_TMPDIR"), "/act.lock"),
        )
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code().unwrap(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn help_lists_what_users_need_and_hides_what_they_do_not() {
    let (code, out, err) = said(&["--help"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for command in [
        "demo",
        "run",
        "status",
        "top",
        "explain",
        "restore",
        "check",
        "bench",
        "capacity",
        "admit",
        "lab",
        "record",
        "schema",
        "completion",
        "man",
    ] {
        assert!(
            out.contains(&format!("\n  {command} ")),
            "{command}:\n{out}"
        );
    }
    for hidden in ["player", "fleet"] {
        assert!(!out.contains(&format!("\n  {hidden}")), "{hidden}:\n{out}");
    }
    assert!(out.contains("Exit codes"), "{out}");
    let (code, out, _) = said(&["--version"]);
    assert_eq!(
        (code, out),
        (0, format!("quell {}\n", env!("CARGO_PKG_VERSION")))
    );
}

#[test]
fn wrong_input_is_exit_code_2_and_says_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let bad_config = file("bad.toml", b"[agent]\nperiod = 80\n");
    let no_text = file("latin1.toml", b"[agent]\n# \xe9\n");
    let no_selector = file("none.toml", b"[[tenant]]\nname = \"a\"\n");
    let bad_scenario = file("scenario.toml", b"name = \"x\"\nsecnds = 3\n");
    let absent = dir.path().join("absent.toml").display().to_string();
    let below_a_file = format!("{bad_config}/x.html");
    let cases: &[(&[&str], &[&str])] = &[
        (&["staus"], &["staus", "status"]),
        (&["status", "--windw", "3"], &["--windw", "--window"]),
        (&["status", "--window", "0"], &["1..=60"]),
        (&["explain"], &["TENANT"]),
        (
            &["check", "-c", &bad_config],
            &["bad.toml:2", "did you mean `period_ms`"],
        ),
        (&["check", "-c", &no_selector], &["tenant[0]", "selector"]),
        (&["check", "-c", &no_text], &["latin1.toml", "UTF-8"]),
        (
            &["check", "-c", &absent],
            &["absent.toml", "cannot be read", "-c FILE"],
        ),
        (&["run", "-c", &bad_config], &["bad.toml:2", "agent"]),
        (&["run", "--source", "magic"], &["magic", "procfs"]),
        (
            &["bench", "no-such-scenario"],
            &["no-such-scenario", "built-in", "demo"],
        ),
        (&["bench", &absent], &["absent.toml", "cannot be read"]),
        (
            &["bench", &bad_scenario],
            &["scenario.toml:2", "did you mean `seconds`"],
        ),
        (
            &["bench", "mixed", "--on", "sim", "--policy", "default,stock"],
            &["`stock`", "simulator", "cfs, eevdf-6.12, eevdf, fifo"],
        ),
        (
            &["bench", "mixed", "--on", "sim", "--policy", "eevdf,parties"],
            &["`parties` is a side of quell-studies: `quell-studies bench` takes it"],
        ),
        (
            &["bench", "mixed", "--policy", "fifo,eevdf"],
            &["`fifo`", "--on sim"],
        ),
        (
            &["bench", "mixed", "--on", "vm", "--policy", "default,fifo"],
            &["`fifo`", "--on sim"],
        ),
        (
            &["bench", "demo", "--on", "sim", "--policy", "fifo,eevdf"],
            &["demo.toml", "`host`", "topology"],
        ),
        (
            &["bench", "demo", "--on", "vm", "--kernel", "5.15"],
            &["`5.15` is no kernel", "sched_ext, 6.12, 6.1"],
        ),
        (&["lab", "run", "--memory", "3", "--", "true"], &["as 3G"]),
        (&["lab", "run"], &["CMD"]),
        (
            &["bench", "demo", "--policy", "default,dasc"],
            &["dasc", "did you mean `dasec`"],
        ),
        (&["bench", "demo", "--policy", ","], &["at least one"]),
        (
            &["bench", "demo", "--seconds", "0"],
            &["--seconds", "0.1 to 3600"],
        ),
        (&["bench", "demo", "--pairs", "0"], &["--pairs", "1..=1000"]),
        (
            &["demo", "--report", &below_a_file],
            &["x.html", "cannot be written"],
        ),
        (
            &["capacity", "mixed", "--policy", "fifo"],
            &[
                "mixed.toml",
                "tenant[0].objective",
                "is missing",
                "--objective p99_ms=10",
            ],
        ),
        (
            &["capacity", "mixed", "--policy", "stock"],
            &["`stock`", "simulator", "cfs, eevdf-6.12, eevdf, fifo"],
        ),
        (
            &[
                "capacity",
                "mixed",
                "--policy",
                ",",
                "--objective",
                "p99_ms=9",
            ],
            &["--policy", "at least one"],
        ),
        (
            &["capacity", "mixed", "--objective", "9"],
            &["--objective", "p99_ms=N"],
        ),
        (
            &[
                "capacity",
                "mixed",
                "--tenant",
                "nobody",
                "--objective",
                "p99_ms=9",
            ],
            &["--tenant", "`nobody`", "there are: "],
        ),
        (
            &[
                "capacity",
                "mixed",
                "--most",
                "5000",
                "--objective",
                "p99_ms=9",
            ],
            &["--most", "5000 is outside 1 to"],
        ),
        (
            &["capacity", "demo", "--objective", "p99_ms=9"],
            &["demo.toml", "`host`", "topology"],
        ),
        (
            &["bench", "mixed", "--sweep", "host.cpus=4,8"],
            &["--sweep", "--on sim"],
        ),
        (
            &["bench", "mixed", "--sweep", "host.cpus=4,,8"],
            &["--sweep", "between commas"],
        ),
        (
            &[
                "capacity",
                "mixed",
                "--objective",
                "p99_ms=9",
                "--parquet",
                &below_a_file,
            ],
            &["x.html", "cannot be written"],
        ),
        (&["top"], &["terminal", "quell status"]),
        (&["completion", "cmd"], &["cmd", "bash"]),
    ];
    for (args, says) in cases {
        let (code, out, err) = said(args);
        assert_eq!(code, 2, "{args:?}: {err}");
        assert!(err.starts_with("quell: "), "{args:?}: {err}");
        assert!(
            !err.contains("backtrace") && !err.contains("panicked"),
            "{args:?}: {err}"
        );
        assert_eq!(out, "", "{args:?}");
        for part in *says {
            assert!(err.contains(part), "{args:?} should say `{part}`: {err}");
        }
    }
}

#[test]
fn without_an_agent_the_commands_say_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("agent.sock").display().to_string();
    for args in [
        &["status"][..],
        &["status", "--matrix"],
        &["status", "--json"],
        &["explain", "web"],
    ] {
        let (code, out, err) = said(&[args, &["--socket", &socket]].concat());
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}");
        assert!(
            err.contains(&socket) && err.contains("quell run -c"),
            "{args:?}: {err}"
        );
    }
}

#[test]
fn restore_refuses_what_is_no_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quell.toml");
    let name = path.display().to_string();
    let (code, _, err) = said(&["restore", "--journal", &name]);
    assert_eq!(code, 2);
    assert!(
        err.contains("no journal at") && err.contains(&name),
        "{err}"
    );
    std::fs::write(&path, "[agent]\n").unwrap();
    let (code, _, err) = said(&["restore", "--journal", &name]);
    assert_eq!(code, 2);
    assert!(err.contains("not a Quell journal"), "{err}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "[agent]\n");
}

#[test]
fn check_says_what_a_right_file_amounts_to() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/quell.toml");
    let (code, out, err) = said(&["check", "-c", &example.display().to_string()]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(
        out.contains("ok: 0 tenants, 4 rules, policy []") && out.contains("period 80 ms"),
        "{out}"
    );
}

#[test]
fn the_schema_is_json() {
    for (args, tables) in [(&["schema"][..], 5), (&["schema", "--drop-in"], 2)] {
        let (code, out, err) = said(args);
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
        let given = schema["properties"].as_object().unwrap();
        assert_eq!(given.len(), tables, "{given:?}");
    }
}

#[test]
fn completions_and_man_pages_are_made() {
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef quell"),
        ("fish", "complete -c quell"),
    ] {
        let (code, out, _) = said(&["completion", shell]);
        assert_eq!(code, 0, "{shell}");
        assert!(out.contains(sign), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("man");
    let (code, _, err) = said(&["man", &folder.display().to_string()]);
    assert_eq!((code, err.as_str()), (0, ""));
    let pages: Vec<_> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for page in ["quell.1", "quell-run.1", "quell-status.1", "quell-bench.1"] {
        assert!(pages.contains(&page.to_string()), "{pages:?}");
    }
    assert!(
        !pages
            .iter()
            .any(|p| p.contains("player") || p.contains("fleet")),
        "{pages:?}"
    );
    let run = std::fs::read_to_string(folder.join("quell-run.1")).unwrap();
    assert!(run.contains("dry\\-run") && run.contains("SIGHUP"), "{run}");
}

const TWO_CPUS: &str = "[host]\ncpus = 2\n";

fn tenant(name: &str, rest: &str) -> String {
    format!("[[tenant]]\nname = \"{name}\"\nperiod_ms = 100\n{rest}\n")
}

#[test]
fn admit_says_who_fits_and_what_would_do() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let critical = "criticality = \"high\"\nbudget_ms = 5\npessimistic_budget_ms = 25";
    let low = "criticality = \"low\"\nbudget_ms = 25";
    let host = TWO_CPUS.to_string()
        + &tenant("rpc", critical)
        + &tenant("hog", &format!("count = 6\n{low}"));
    let host = write("host.toml", &host);
    let (code, out, err) = said(&["admit", &host]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(
        out.contains("7 of 7 tenants fit; 0 of 2 CPUs are left"),
        "{out}"
    );
    assert!(out.contains("no more like hog would fit"), "{out}");
    // A test that ignores criticality does not admit even these tenants.
    let (code, out, _) = said(&["admit", &host, "--test", "rm"]);
    assert_eq!(code, 3, "{out}");
    let more = write(
        "more.toml",
        &tenant("db", "vcpus = 2\ncriticality = \"low\"\nbudget_ms = 18"),
    );
    let (code, out, _) = said(&["admit", &host, &more]);
    assert_eq!(code, 3, "{out}");
    assert!(
        out.contains("db: does not fit") && out.contains("vcpus = 1"),
        "{out}"
    );
    let (code, out, _) = said(&["admit", &host, &more, "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &answer["fits"]), (3, &serde_json::json!(false)));
    assert_eq!(answer["tenants"][7]["refusal"]["placed"], 1);
    let (code, _, err) = said(&["admit", "/nowhere/host.toml"]);
    assert!(code == 2 && err.contains("/nowhere/host.toml"), "{err}");
}

/// The whole input is refused, with the key and the reason.
#[test]
fn admit_refuses_what_makes_no_sense() {
    let high = |budget: &str, worst: &str| {
        format!("criticality = \"high\"\nbudget_ms = {budget}\npessimistic_budget_ms = {worst}")
    };
    let cases = [
        (
            high("30", "25"),
            "tenant[0].pessimistic_budget_ms",
            "less than budget_ms",
        ),
        (
            high("5", "125"),
            "tenant[0].pessimistic_budget_ms",
            "more than the period",
        ),
        (high("nan", "25"), "tenant[0].budget_ms", "less than 0.1"),
        (
            "criticality = \"high\"\nbudget_ms = 5".into(),
            "tenant[0].pessimistic_budget_ms",
            "missing",
        ),
        (
            "criticality = \"low\"\nbudget_ms = 5\npessimistic_budget_ms = 6".into(),
            "tenant[0].pessimistic_budget_ms",
            "high",
        ),
        (
            "criticality = \"low\"\nbudget_ms = 101".into(),
            "tenant[0].budget_ms",
            "more than the period",
        ),
        (
            "criticality = \"low\"".into(),
            "tenant[0].budget_ms",
            "missing",
        ),
        ("budget_ms = 5".into(), "tenant[0].period_ms", "criticality"),
        (
            "criticality = \"low\"\nbudget_ms = 5\nvcpus = 3".into(),
            "tenant[0].vcpus",
            "2",
        ),
        (
            "criticality = \"low\"\nbudget_ms = 5\nvcpus = 0".into(),
            "tenant[0].vcpus",
            "1 to 1024",
        ),
        (
            "criticality = \"medium\"\nbudget_ms = 5".into(),
            "tenant[0].criticality",
            "high",
        ),
        (
            "criticality = \"low\"\nbudget_ms = 5\n[[tenant]]\nname = \"a\"".into(),
            "tenant[1].name",
            "earlier",
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("host.toml");
    for (rest, key, reason) in cases {
        std::fs::write(&path, TWO_CPUS.to_string() + &tenant("a", &rest)).unwrap();
        let (code, out, err) = said(&["admit", path.to_str().unwrap()]);
        assert!(
            code == 2 && out.is_empty() && err.contains(key) && err.contains(reason),
            "{rest}: {code} {err}"
        );
    }
    for (rest, key) in [
        ("period_ms = 0.5", "tenant[0].period_ms"),
        ("period_ms = 20000", "tenant[0].period_ms"),
    ] {
        let text = format!(
            "{TWO_CPUS}[[tenant]]\nname = \"a\"\ncriticality = \"low\"\nbudget_ms = 0.2\n{rest}\n"
        );
        std::fs::write(&path, text).unwrap();
        let (code, _, err) = said(&["admit", path.to_str().unwrap()]);
        assert!(code == 2 && err.contains(key), "{rest}: {err}");
    }
}
