use super::*;

fn options(side: &str, hosts: u32, seed: u64, most_cpus: u32) -> PromisesOptions {
    PromisesOptions {
        sides: Side::parse_list(side).unwrap(),
        hosts,
        seed,
        most_cpus,
        seconds: 3.0,
        trace: None,
        exe: "quell".into(),
    }
}

fn measured(side: &str, hosts: u32, seed: u64, most_cpus: u32) -> Vec<HostPromises> {
    let options = options(side, hosts, seed, most_cpus);
    let promises = simulate(&options, &AtomicBool::new(false), &Progress::silent()).unwrap();
    println!("{}", table(&promises));
    promises.sides[0].hosts.clone()
}

#[test]
fn what_the_agent_promises_is_kept() {
    for side in ["akita", "quell"] {
        let hosts = measured(side, 12, 0, 8);
        for host in &hosts {
            assert_eq!(host.misses, [], "{side}, seed {}", host.seed);
            assert_eq!(host.moved[0], 0, "{side}, seed {}", host.seed);
        }
        let sum = |of: fn(&HostPromises) -> u64| hosts.iter().map(of).sum::<u64>();
        assert!(sum(|it| it.kept) > 1000 && sum(|it| it.switches) > 100);
    }
}

/// Where only threads take time, a thread stops when its budget is used up. On these hosts some threads then
/// run on by right, on the best-effort server.
#[test]
fn who_has_used_its_budget_does_not_run_on() {
    for seed in [1004, 1179] {
        let budgets = measured("akita", 1, seed, 1)[0].budgets;
        assert!(budgets.count > 0 && budgets.worst_us < 1.0, "{budgets:?}");
    }
}

/// On these hosts HI mode began when a server woke while the best-effort server was owed CPU time: a running
/// thread of low criticality, whose budget was used up, ran on.
#[test]
fn no_budget_of_low_criticality_is_used_in_hi_mode() {
    for seed in [131, 439, 920] {
        let modes = measured("akita", 1, seed, 1)[0].modes;
        assert!(modes.count > 0 && modes.worst_us < 1.0, "{modes:?}");
    }
}

/// A tenant of low criticality waits for 1.9 s here until it runs on the CPU that it was moved to, and has a
/// turn by its weight on its former CPU 0.15 s after it lost its promise there.
#[test]
fn who_is_moved_has_no_promise_until_it_is_served_elsewhere() {
    for seed in [40, 683] {
        let options = PromisesOptions {
            // Long enough to see it move.
            seconds: 5.0,
            ..options("akita", 1, seed, 64)
        };
        let promises = simulate(&options, &AtomicBool::new(false), &Progress::silent()).unwrap();
        let host = &promises.sides[0].hosts[0];
        assert!(host.moved[1] > 0);
        assert_eq!(host.misses, []);
        for late in [host.budgets, host.modes] {
            assert!(late.count > 0 && late.worst_us < 1.0, "{late:?}");
        }
    }
}

#[test]
fn what_broke_a_promise_is_kept() {
    let folder = TempDir::new().unwrap();
    for (side, kept) in [
        ("akita", &[][..]),
        ("eevdf", &["eevdf-0.perfetto-trace", "eevdf-0.toml"]),
    ] {
        let options = PromisesOptions {
            trace: Some(folder.path().to_path_buf()),
            ..options(side, 1, 0, 2)
        };
        simulate(&options, &AtomicBool::new(false), &Progress::silent()).unwrap();
        let files = fs::read_dir(folder.path()).unwrap();
        let files = files.map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = files.collect();
        files.sort();
        assert_eq!(files, kept);
    }
    let scenario = folder.path().join("eevdf-0.toml");
    Scenario::parse(&scenario, &fs::read_to_string(&scenario).unwrap()).unwrap();
}

#[test]
fn who_promises_nothing_keeps_nothing() {
    let broken: usize = measured("eevdf", 4, 0, 4)
        .iter()
        .map(|it| it.misses.len())
        .sum();
    assert!(broken > 100, "{broken}");
}
