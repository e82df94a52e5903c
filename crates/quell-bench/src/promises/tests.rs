use super::*;

fn measured(side: &str, hosts: u32, most_cpus: u32) -> Vec<HostPromises> {
    let options = PromisesOptions {
        sides: Side::parse_some(side).unwrap(),
        hosts,
        seed: 0,
        most_cpus,
        seconds: 3.0,
        exe: "quell".into(),
    };
    let promises = simulate(&options, &AtomicBool::new(false), &Progress::silent()).unwrap();
    println!("{}", table(&promises));
    promises.sides[0].hosts.clone()
}

#[test]
fn what_the_agent_promises_is_kept() {
    for side in ["akita", "quell"] {
        let hosts = measured(side, 12, 8);
        for host in &hosts {
            assert_eq!(host.misses, [], "{side}, seed {}", host.seed);
            assert_eq!(host.moved[0], 0, "{side}, seed {}", host.seed);
        }
        let sum = |of: fn(&HostPromises) -> u64| hosts.iter().map(of).sum::<u64>();
        assert!(sum(|it| it.kept) > 1000 && sum(|it| it.switches) > 100);
    }
}

#[test]
fn who_promises_nothing_keeps_nothing() {
    let broken: usize = measured("eevdf", 4, 4)
        .iter()
        .map(|it| it.misses.len())
        .sum();
    assert!(broken > 100, "{broken}");
}
