use super::*;
use crate::progress::Progress;
use crate::run::{BenchOptions, simulated};
use crate::side::Side;
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

const FILE: &str = r#"{
    "global": { "duration": 5, "calibration": "CPU0", "default_policy": "SCHED_OTHER" },
    "tasks": {
        "a task": { "cpus": [0, 2], "loop": -1, "phases": {
            "p1": { "loop": 3, "run": 100, "lock": "m", "run": 20, "wait": { "ref": "c", "mutex": "m" },
                    "run1": 5, "unlock": "m" },
            "p2": { "sleep": 50, "suspend": "", "barrier": "b" } } },
        "other": { "instance": 2, "lock0": "m", "runtime": 7, "signal": "c", "unlock0": "m", "resume": "a task",
                   "barrier": "b", "timer": { "ref": "unique", "period": 1000, "mode": "absolute" } }
    } }"#;

fn scenario(text: &str) -> (Scenario, Imported) {
    let imported = import(text).unwrap();
    let scenario = Scenario::parse(Path::new("t"), &imported.toml).unwrap();
    (scenario, imported)
}

#[test]
fn events_become_steps_in_their_order() {
    let (scenario, imported) = scenario(FILE);
    assert_eq!((scenario.seconds, scenario.warmup_seconds), (5.0, 0.0));
    let programs: Vec<&str> = imported.toml.split("program = [\n").skip(1).collect();
    assert!(
        programs[0].starts_with(
            r#"    { repeat = { times = 3, program = [{ run_us = 100.0 }, { lock = { name = "m", program = [{ run_us = 20.0 }, { wait_next = "c" }, { run_us = 5.0 }] } }] } },
    { sleep_us = 50.0 },
    { wait_next = "a task" },
    { barrier = "b" },
]"#
        ),
        "{}",
        programs[0]
    );
    assert!(
        programs[1].starts_with(
            r#"    { lock = { name = "m", program = [{ run_us = 7.0 }, { signal = "c" }] } },
    { broadcast = "a task" },
    { barrier = "b" },
    { timer = { period_us = 1000.0, name = "unique", missed = "catch_up" } },
]"#
        ),
        "{}",
        programs[1]
    );
    assert!(
        imported.toml.contains("cpus = \"0,2\""),
        "{}",
        imported.toml
    );
    assert!(
        imported
            .notes
            .iter()
            .any(|note| note.contains("thread `a_task`"))
    );
    assert_eq!(imported.caveat, None);
}

#[test]
fn comments_trailing_commas_and_a_suspend_without_a_value_are_read() {
    let text = r#"{ /* of two
            lines */
        "tasks": { "a": { "run": 1000, "sleep": 9000, // a tenth
                          "suspend", }, "b": { "resume": "a", "run": 5, "timer": { "ref": "t", "period": 100, }, } },
        "global": { "pi_enabled": false, "duration": 3, },
    } // the end"#;
    let (scenario, imported) = scenario(text);
    assert!(
        imported
            .toml
            .contains("{ sleep_us = 9000.0 },\n    { wait_next = \"a\" }")
    );
    assert_eq!(scenario.seconds, 3.0);
}

/// Files that are refused, and words of each message.
const REFUSED: &[(&str, &[&str])] = &[
    (
        r#"{"tasks": {"a": {"exec": 5000, "period": 24000, "lock_order": ["r0"]}}}"#,
        &["line 1", "task `a`", "`exec`", "old grammar"],
    ),
    (
        "{\n\"global\": {\"duration\": 5}}",
        &["line 1", "no `tasks`", "part"],
    ),
    (
        "{\"tasks\": {\"a\": {\n\"run\": 10\n\"sleep\": 5}}}",
        &["line 3", "comma is missing"],
    ),
    (
        "{\"tasks\": {\"a\": {\n\"run\", \"sleep\": 5}}}",
        &["line 2", "task `a`", "`run` has no value"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 10,\n\"phases\": {\"p\": {\"run\": 1}}}}}",
        &["line 1", "`run`", "beside `phases`"],
    ),
    (
        "{\"tasks\": {\"a\": {\"phases\": {\"p\": {\n\"run\": \"x\"}}}}}",
        &["line 2", "task `a`, phase `p`", "`run` is no number"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 10,\n\"fork\": \"a\"}}}",
        &["line 2", "task `a`", "`fork`"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 10,\n\"suspend\": \"\"}}}",
        &["line 2", "`suspend` waits for ever", "`a`"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 10, \"lock\": \"m\",\n\"lock\": \"n\", \"unlock\": \"m\"}}}",
        &["line 2", "`unlock`", "`n`"],
    ),
    (
        "{\"tasks\": {\"a\": {\"lock\": \"m\",\n\"run\": 10}}}",
        &["line 2", "`m`", "still locked"],
    ),
    (
        "{\"tasks\": {\"a\": {\"phases\": {\"p\": {\"run\": 1, \"cpus\": [0]},\n\"q\": {\"run\": 1, \"cpus\": [1]}}}}}",
        &["line 2", "phase `q`", "`cpus`", "phases before"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 1, \"policy\": \"SCHED_FOO\"}}}",
        &["line 1", "`policy`", "SCHED_FOO"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 1,\n\"priority\": 30}}}",
        &["line 2", "`priority` is 30", "-20 to 19"],
    ),
    (
        "{\"tasks\": {\"a\": {\"instance\": 2, \"run\": 1,\n\"timer\": {\"ref\": \"t\", \"period\": 9}}}}",
        &["line 2", "`timer`", "`t` of several threads", "unique"],
    ),
    (
        "{\"tasks\": {\"a\": {\"taskgroup\": \"/a\", \"run\": 1,\n\"resume\": \"b\"}, \"b\": {\"suspend\": \"\", \"run\": 1}}}",
        &["`b`", "tenants share nothing"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 1,\n\"barrier\": \"b\", \"barrier\": \"b\"}}}",
        &["line 2", "`barrier`", "twice"],
    ),
    (
        "{\"tasks\": {\"a\": {\"run\": 1, \"policy\": \"SCHED_DEADLINE\"}}}",
        &["`policy`", "dl-runtime"],
    ),
    ("{\"tasks\": [], \"x\": 1}", &["`tasks` has no task"]),
];

#[test]
fn what_would_be_another_load_is_refused_by_line_task_and_event() {
    for (text, parts) in REFUSED {
        let error = format!("{:#}", import(text).expect_err(text));
        for part in *parts {
            assert!(error.contains(part), "{error}\nfor {text} lacks {part}");
        }
    }
}

#[test]
fn how_threads_are_scheduled_is_kept() {
    let text = r#"{"global": {"default_policy": "SCHED_BATCH"}, "tasks": {
        "a": {"run": 10, "timer": {"ref": "unique", "period": 100}, "policy": "SCHED_OTHER", "priority": -19, "dl-runtime": 250000, "cpus": [7]},
        "b": {"run": 10, "timer": {"ref": "unique", "period": 100}, "delay": 500, "loop": 4, "priority": 3},
        "c": {"run": 10, "policy": "SCHED_IDLE", "priority": 5},
        "d": {"run": 10, "timer": {"ref": "unique", "period": 100}, "policy": "SCHED_FIFO"},
        "e": {"run": 10, "policy": "SCHED_OTHER", "taskgroup": "/tg1/tg11"},
        "f": {"instance": 2, "run": 10, "timer": {"ref": "unique", "period": 100}, "policy": "SCHED_DEADLINE",
              "dl-runtime": 2000, "dl-period": 10000},
        "g": {"phases": {"p": {"run": 10, "cpus": [1], "priority": 7}, "q": {"run": 5, "cpus": [1]}}}
    }}"#;
    let (scenario, imported) = scenario(text);
    assert_eq!(scenario.host.unwrap().cpus, Some(8));
    let thread = |name: &str| {
        let tenants = scenario.tenants.iter();
        let all = tenants.flat_map(|tenant| tenant.threads.iter().map(move |it| (tenant, it)));
        let mut all = all.filter(|(_, thread)| thread.name == name);
        all.next().unwrap()
    };
    let keys = |name: &str| {
        let it = thread(name).1;
        (it.policy.name(), it.nice, it.priority, it.slice_us)
    };
    // A slice is at most as long as the kernel gives.
    assert_eq!(keys("a"), ("other", Some(-19), None, Some(100_000.0)));
    assert_eq!(keys("b"), ("batch", Some(3), None, None));
    assert_eq!(keys("c"), ("idle", None, None, None));
    assert_eq!(keys("d"), ("fifo", None, Some(10), None));
    assert_eq!(keys("g"), ("batch", Some(7), None, None));
    let (_, b) = thread("b");
    assert_eq!((b.delay_us, b.rounds), (500.0, Some(4)));
    assert_eq!(thread("a").1.cpus, Some("7".parse().unwrap()));
    assert_eq!(thread("g").1.cpus, Some("1".parse().unwrap()));
    assert_eq!(thread("e").0.within.as_deref(), Some("tg1.tg11"));
    let inner = scenario.groups.iter().find(|it| it.name == "tg1.tg11");
    assert_eq!(inner.unwrap().within.as_deref(), Some("tg1"));
    let promised = thread("f").0.spec.server().unwrap();
    assert_eq!(
        (promised.budget_ns, promised.period_ns),
        (2_000_000, 10_000_000)
    );
    assert_eq!(thread("f").0.spec.vcpus, Some(2));
    assert!(
        imported
            .caveat
            .unwrap()
            .contains("SCHED_DEADLINE but for a promise")
    );
}

#[test]
fn what_is_left_out_is_one_caveat_over_the_result() {
    let text = "{\"global\": {\"duration\": 1}, \"tasks\": {\"a\": {\"run\": 1000,\n\"mem\": 1000, \"sleep\": 4000,\n\"iorun\": 9, \"util_min\": 300}}}";
    let (scenario, imported) = scenario(text);
    let caveat = imported.caveat.unwrap();
    for part in [
        "leaves out",
        "memory and files",
        "`mem` of task `a`, line 2",
        "`iorun` of task `a`, line 3",
        "utilisation clamps",
    ] {
        assert!(caveat.contains(part), "{caveat}");
    }
    assert_eq!(scenario.caveat, caveat);
    let result = simulate(scenario);
    let report = crate::report::text(&result, false);
    assert!(report.contains(&format!("CAVEAT: {caveat}")), "{report}");
}

fn simulate(scenario: Scenario) -> crate::result::BenchResult {
    let options = BenchOptions {
        sides: vec![Side::Default],
        pairs: 1,
        ..BenchOptions::new(scenario, "quell".into())
    };
    simulated::run(&options, &AtomicBool::new(false), &Progress::silent()).unwrap()
}

/// How much of one CPU the threads of each thread table use together, in percent.
fn percents(text: &str, cpus: u32) -> BTreeMap<String, f64> {
    let (mut scenario, _) = scenario(text);
    let host = scenario.host.as_mut().unwrap();
    host.cpus = Some(cpus);
    let result = simulate(scenario);
    let tenants = result.runs[0].tenants.iter();
    let programs = tenants.flat_map(|it| it.figures.programs.clone());
    programs
        .map(|(name, share)| (name, share * 100.0 * f64::from(cpus)))
        .collect()
}

/// Threads, and the percentage of a CPU that each uses.
type Uses = &'static [(&'static str, f64)];

/// Files, the number of CPUs, and what the threads use as worked out by hand.
#[rustfmt::skip]
const USES: &[(&str, u32, Uses)] = &[
    (r#"{"tasks":{"a":{"run":1000,"sleep":9000}}} // 10 %"#, 2, &[("a", 10.0)]),
    (r#"{"tasks":{"a":{"run":1000,"sleep":9000,}}}"#, 2, &[("a", 10.0)]),
    // An event that no thread waits for; a lock that one thread uses.
    (r#"{"tasks":{"a":{"run":100,"resume":"b","timer":{"ref":"t","period":10000}},"b":{"run":50,"timer":{"ref":"u","period":10000}}}}"#, 2, &[("a", 1.0), ("b", 0.5)]),
    (r#"{"tasks":{"a":{"lock":"m","run":100,"unlock":"m","timer":{"ref":"t","period":10000}}}}"#, 2, &[("a", 1.0)]),
    // A thread that waits and passes the wakeup on.
    (r#"{"tasks":{
        "tick":{"run":100,"resume":"fwd","timer":{"ref":"t","period":10000}},
        "fwd":{"suspend":"fwd","resume":"worker"},
        "worker":{"suspend":"worker","run":5000}}}"#, 2, &[("tick", 1.0), ("fwd", 0.0), ("worker", 50.0)]),
    // A thread that signals and then waits, waits for the answer, not for its own signal.
    (r#"{"tasks":{
        "decoder":{"run":1000,"lock":"m","signal":"q","wait":{"ref":"q","mutex":"m"},"unlock":"m","run1":1500,"timer":{"ref":"t","period":10000}},
        "omx":{"lock":"m","wait":{"ref":"q","mutex":"m"},"unlock":"m","run":3000,"lock1":"m","signal":"q","unlock1":"m"}}}"#, 2, &[("decoder", 25.0), ("omx", 30.0)]),
    // A resume that comes while no thread is suspended is lost: one of every two.
    (r#"{"tasks":{
        "tick":{"run":100,"resume":"slow","timer":{"ref":"t","period":10000}},
        "slow":{"run":15000,"suspend":""}}}"#, 2, &[("tick", 1.0), ("slow", 75.0)]),
    // One resume, by the name that `suspend` gives, wakes both threads.
    (r#"{"tasks":{
        "tick":{"run":100,"resume":"sub","timer":{"ref":"t","period":10000}},
        "sub1":{"suspend":"sub","run":1000},"sub2":{"suspend":"sub","run":2000}}}"#, 4, &[("sub1", 10.0), ("sub2", 20.0)]),
    // A timer that restarts when it is late, and a timer that catches up: each is 1 s late once.
    (r#"{"global":{"duration":3},"tasks":{"a":{"loop":1,"phases":{
        "p":{"run":1000000},"q":{"loop":-1,"run":100,"timer":{"ref":"unique","period":1000}}}}}}"#, 2, &[("a", 40.0)]),
    (r#"{"global":{"duration":3},"tasks":{"a":{"loop":1,"phases":{
        "p":{"run":1000000},"q":{"loop":-1,"run":500,"timer":{"ref":"unique","period":1000,"mode":"absolute"}}}}}}"#, 2, &[("a", 83.3)]),
    // The first task ends after 4 times 120 ms of 2 s; the second begins late.
    (r#"{"global":{"duration":2},"tasks":{
        "a":{"loop":4,"run":120000,"timer":{"ref":"t","period":200000}},
        "b":{"delay":1000000,"run":1000,"sleep":1000}}}"#, 2, &[("a", 24.0), ("b", 25.0)]),
    // Phases: 1 s of 10 % and 1 s of 70 %, in turn.
    (r#"{"global":{"duration":4},"tasks":{"a":{"phases":{
        "light":{"loop":100,"run":1000,"timer":{"ref":"unique","period":10000}},
        "heavy":{"loop":100,"run":7000,"timer":{"ref":"unique","period":10000}}}}}}"#, 2, &[("a", 40.0)]),
    // Two threads share the CPU that both must use, by their nice values: 1024 to 335.
    (r#"{"tasks":{"a":{"run":1000,"cpus":[1]},"b":{"run":1000,"cpus":[1],"priority":5}}}"#, 2, &[("a", 75.3), ("b", 24.7)]),
    // Background threads take nothing from periodic threads.
    (r#"{"tasks":{
        "work":{"instance":8,"run":5333,"timer":{"ref":"unique","period":7777}},
        "hog":{"instance":5,"run":3000,"policy":"SCHED_IDLE"}}}"#, 8, &[("work", 8.0 * 68.57)]),
    // A task group has the share of one thread.
    (r#"{"tasks":{"a":{"run":1000,"cpus":[0]},"b":{"instance":3,"run":1000,"cpus":[0],"taskgroup":"/tg"}}}"#, 2, &[("a", 50.0), ("b", 50.0)]),
    // Semaphores keep what was posted; barriers keep step.
    (r#"{"tasks":{"a":{"run":1000,"sem_post":"s","sem_post":"s","timer":{"ref":"t","period":10000}},"b":{"sem_wait":"s","run":2000}}}"#, 2, &[("a", 10.0), ("b", 40.0)]),
    (r#"{"tasks":{"a":{"run":1000,"sleep":2000,"barrier":"x"},"b":{"run":2000,"barrier":"x"},"c":{"run":10,"sleep":90,"barrier":"mine"}}}"#, 4, &[("a", 33.3), ("b", 66.7), ("c", 10.0)]),
];

#[test]
fn threads_use_what_follows_from_the_file_by_hand() {
    for (text, cpus, expected) in USES {
        let got = percents(text, *cpus);
        for (name, due) in *expected {
            let used = got.get(*name).copied().unwrap_or_default();
            // Within a percentage point; within two for each of the eight threads, as EEVDF now and then has
            // two of them share a CPU for a while.
            let most = if *name == "work" { 16.0 } else { 1.0 };
            assert!(
                (used - due).abs() < most,
                "{name} uses {used:.2} % for {due} %\n{text}"
            );
        }
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = import(&text);
    }

    #[test]
    fn no_json_panics(
        events in prop::collection::vec((
            prop_oneof![
                Just("run"), Just("sleep"), Just("timer"), Just("lock"), Just("unlock"), Just("wait"), Just("sync"),
                Just("signal"), Just("broad"), Just("barrier"), Just("suspend"), Just("resume"), Just("loop"),
                Just("instance"), Just("phases"), Just("cpus"), Just("delay"), Just("policy"), Just("priority"),
                Just("taskgroup"), Just("dl-runtime"), Just("sem_wait"), Just("sem_post"), Just("mem"), Just("util_min"),
            ],
            prop_oneof![
                Just("1"), Just("-1"), Just("1e300"), Just("\"m\""), Just("\"\""), Just("null"), Just("[1]"), Just("{}"),
                Just("{\"ref\":\"m\",\"mutex\":\"m\"}"), Just("{\"period\":5}"), Just("{\"a\":{\"run\":5,\"loop\":2}}"),
                Just("\"SCHED_IDLE\""), Just("\"SCHED_DEADLINE\""), Just("\"/a/b\""), Just("\"z\""),
            ],
        ), 0..12),
        name in "[a-z \"\\\\é]{0,20}",
    ) {
        let events: Vec<String> = events.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        let name = serde_json::to_string(&name).unwrap();
        let task = format!("{name}:{{{}}}", events.join(","));
        if let Ok(imported) = import(&format!("{{\"tasks\":{{{task},\"z\":{{\"run\":5}}}}}}")) {
            prop_assert!(Scenario::parse(Path::new("t"), &imported.toml).is_ok());
        }
    }

    #[test]
    fn no_mutation_panics(start in 0..FILE.len(), length in 0..40usize, instead in "[a-z0-9{}\":,/*-]{0,8}") {
        let end = (start + length).min(FILE.len());
        let _ = import(&format!("{}{instead}{}", &FILE[..start], &FILE[end..]));
    }
}
