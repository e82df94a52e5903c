use super::*;
use crate::sides::Baseline;
use quell_bench::side::AddedSide;

fn simulated(host: &Host, cache_cpus: Option<u32>, steps: usize, before_s: u32) -> Vec<Vec<f64>> {
    let sides = Side::parse_list("share=quell sched --share").unwrap();
    simulated::simulate(host, cache_cpus, &sides[0], steps, before_s).unwrap()
}

fn judged(seed: u64, drawn: &Drawn) -> HostShares {
    judged_of_caches(seed, drawn, None)
}

/// Judges a host on which `cpus` CPUs share a last-level cache.
fn judged_of_caches(seed: u64, drawn: &Drawn, cpus: Option<u32>) -> HostShares {
    let host = Host::random(seed, drawn);
    judge(seed, drawn, &host, &simulated(&host, cpus, 80, 0)).unwrap()
}

/// Judges a host that begins as on a real machine.
fn judged_like_real(seed: u64, drawn: &Drawn, cache_cpus: Option<u32>) -> HostShares {
    let host = Host::random(seed, drawn).in_phase();
    let got = simulated(&host, cache_cpus, 50, BEFORE_S);
    judge(seed, drawn, &host, &got).unwrap()
}

/// How far hosts are off, the worst first.
fn sorted(of: &str, off: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut off: Vec<(f64, u64)> = off.zip(0..).collect();
    off.sort_by(|one, other| other.0.total_cmp(&one.0));
    println!("{of}, worst with seeds: {:.2?}", &off[..12]);
    off.into_iter().map(|(off, _)| off).collect()
}

/// Hosts of up to `cpus` CPUs.
fn up_to(cpus: u32, bound: Bound) -> Drawn {
    Drawn {
        cpus,
        exactly: false,
        most_groups: 8,
        bound,
        least_period_us: 0,
    }
}

/// Hosts as on a real machine of `cpus` CPUs.
fn real(cpus: u32, bound: Bound) -> Drawn {
    Drawn {
        cpus,
        exactly: true,
        most_groups: 8,
        bound,
        least_period_us: 10_000,
    }
}

fn off(bound: Bound, most_cpus: u32, hosts: u64, of: impl Fn(&HostShares) -> f64) -> Vec<f64> {
    let drawn = up_to(most_cpus, bound);
    let hosts = (0..hosts).map(|seed| of(&judged(seed, &drawn)));
    sorted(&format!("{bound} on {most_cpus}"), hosts)
}

/// The part of the values that is within `points` percentage points.
fn within(off: &[f64], points: f64) -> f64 {
    off.iter().filter(|it| **it <= points).count() as f64 / off.len() as f64
}

/// Asserts that at least this part is within two points, and none is further off than `worst`.
fn nearly(bound: Bound, off: &[f64], least: f64, worst: f64) {
    let part = within(off, 2.0);
    println!("{bound}: {:.1} % within two points", part * 100.0);
    assert!(part >= least && off[0] <= worst, "{bound}: {off:.2?}");
}

#[test]
fn random_hosts_of_one_cpu_are_shared_exactly() {
    let off = off(Bound::Nobody, 1, 100, |host| host.group.off());
    assert!(within(&off, 2.0) >= 0.97 && off[0] <= 3.0, "{off:.2?}");
}

/// A scheduler that knows what is due can keep to it.
#[test]
fn who_is_told_what_is_due_keeps_to_it() {
    let ideal = Side::Added(AddedSide(&Baseline::Ideal));
    for seed in 0..30 {
        let drawn = up_to(4, Bound::ALL[seed as usize % 3]);
        let host = Host::random(seed, &drawn);
        let got = simulated::simulate(&host, None, &ideal, 40, 0).unwrap();
        let worst = judge(seed, &drawn, &host, &got).unwrap().group;
        assert!(worst.off() <= 0.5, "seed {seed}: {worst:?}");
    }
}

#[test]
fn random_hosts_are_shared_nearly() {
    // Not yet the aim, which is two points everywhere. With so many hosts, one host is a quarter of a point.
    for (bound, least, worst) in [
        (Bound::Nobody, 0.98, 3.5),
        (Bound::ToOne, 0.975, 5.0),
        (Bound::ToSome, 0.965, 4.0),
    ] {
        let off = off(bound, 8, 400, |host| {
            but_known(&KNOWN[1..], bound, host.seed, host.group.off())
        });
        nearly(bound, &off, least, worst);
    }
}

/// Hosts on which the worst group is further off than the tests' bound, and how far it may be. Both have
/// bursts of half a second and more, which begin as requests, beside threads that run for about half of each
/// 10 ms and have no time to catch up in. On the first, all threads ran before.
const KNOWN: [(Bound, u64, f64); 2] = [(Bound::Nobody, 37, 4.1), (Bound::ToSome, 367, 4.1)];

/// A known host keeps to its own bound, and still counts as not within two points.
fn but_known(known: &[(Bound, u64, f64)], bound: Bound, seed: u64, off: f64) -> f64 {
    let Some((.., most)) = known.iter().find(|it| (it.0, it.1) == (bound, seed)) else {
        return off;
    };
    assert!(off <= *most, "{bound}, seed {seed}: {off}");
    off.min(2.5)
}

/// What some threads used before others began is hardly a debt.
#[test]
fn random_hosts_where_some_ran_before_are_shared_nearly() {
    for (bound, least, worst) in [
        (Bound::Nobody, 0.99, 3.5),
        (Bound::ToOne, 0.98, 3.0),
        (Bound::ToSome, 0.975, 3.0),
    ] {
        let drawn = real(4, bound);
        let off = |seed| judged_like_real(seed, &drawn, None).group.off();
        let hosts = (0..200).map(|seed| but_known(&KNOWN[..1], bound, seed, off(seed)));
        nearly(bound, &sorted(&bound.to_string(), hosts), least, worst);
    }
}

#[test]
fn whose_tenant_is_furthest_behind_is_not_passed() {
    let drawn = |bound| up_to(8, bound);
    // Ineligible tasks of tenants with less lag went ahead of an eligible pinned task, which got nothing for
    // as long as that lasted.
    let worst = judged(2432, &drawn(Bound::ToSome)).tenant;
    assert!(worst.off() <= 4.0, "{worst:?}");
    // A task that was to run on an idle CPU took the pinned task's CPU, and then came back, for a third of a
    // second.
    let worst = judged(481, &drawn(Bound::ToOne)).tenant;
    assert!(worst.off() <= 2.5, "{worst:?}");
    // Tasks beside which it ran went ahead of a tenant with a CPU of its own, which got four fifths of it.
    let worst = judged(97, &drawn(Bound::ToOne)).tenant;
    assert!(worst.off() <= WITHIN, "{worst:?}");
    // Eligible tasks took the CPU of a task that is due all of it, whenever its slice ended.
    let worst = judged_like_real(129, &real(4, Bound::Nobody), None).tenant;
    assert!(worst.off() <= WITHIN, "{worst:?}");
    // Eligible tasks of other caches did so, too.
    for seed in [209, 1039, 2286] {
        let drawn = real(8, Bound::ALL[seed as usize % 3]);
        let worst = judged_like_real(seed, &drawn, Some(1)).tenant;
        assert!(worst.off() <= 1.5, "{seed}: {worst:?}");
    }
}

#[test]
fn a_host_is_the_same_as_a_scenario() {
    for (seed, bound) in (0..50).zip(Bound::ALL.into_iter().cycle()) {
        let drawn = real(4, bound);
        let host = Host::random(seed, &drawn).in_phase();
        let scenario = host.scenario().unwrap();
        let cgroups = scenario.cgroups();
        for (number, group) in host.problem.groups.iter().enumerate() {
            let at = |number: usize| {
                let name = format!("g{number}");
                cgroups
                    .all
                    .iter()
                    .position(|it| it.name.as_str() == name)
                    .unwrap()
            };
            let cgroup = &cgroups.all[at(number)];
            assert_eq!(cgroup.weight.0, group.weight);
            assert_eq!(cgroup.parent, group.parent.map(at));
        }
        assert_eq!(scenario.tenants.len(), host.wants.len());
    }
}

/// One CPU and two threads, each in a group of its own: one always wants the CPU, the other in bursts.
#[test]
fn what_is_due_over_time_follows_who_wants_cpus() {
    let drawn = Drawn {
        cpus: 1,
        exactly: true,
        most_groups: 2,
        bound: Bound::Nobody,
        least_period_us: 0,
    };
    let mut host = Host::random(0, &drawn);
    let mut thread = host.problem.threads[0].clone();
    for group in &mut host.problem.groups {
        (group.parent, group.weight) = (None, 100);
    }
    thread.group = Some(0);
    let other = quell_policy::share::Thread {
        group: Some(1),
        ..thread.clone()
    };
    host.problem.threads = vec![thread, other];
    // One thread always wants the CPU, the other wants 200 ms of every second: it gets half of the CPU for
    // 400 ms.
    host.wants = vec![Wants::Always, Wants::Bursts(200, 1000, 100)];
    let due = fluid::fluid(&host, 20).unwrap();
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-6, "{got} {expected}");
    for (step, one, other) in [
        (0, 0.1, 0.0),
        (2, 0.2, 0.1),
        (4, 0.3, 0.2),
        (9, 0.8, 0.2),
        (19, 1.6, 0.4),
    ] {
        near(due[step][0], one);
        near(due[step][1], other);
    }
}

/// Threads wait where they woke, beside other threads that share a cache with that CPU; a thread that lags
/// gets a CPU elsewhere.
#[test]
fn hosts_of_several_caches_are_shared_as_those_of_one() {
    // (most CPUs, CPUs to a cache, hosts, the part within 2 %, the worst): of 16 caches a CPU looks at some
    // only.
    for (cpus, each, hosts, least, worst) in [(16, 4, 60, 0.95, 4.0), (32, 2, 30, 0.9, 4.0)] {
        for bound in Bound::ALL {
            let drawn = Drawn {
                most_groups: 16,
                ..up_to(cpus, bound)
            };
            let off = |seed| judged_of_caches(seed, &drawn, Some(each)).group.off();
            let name = format!("{bound}, {each} of {cpus} to a cache");
            nearly(bound, &sorted(&name, (0..hosts).map(off)), least, worst);
        }
    }
}

/// All threads of a crowd wait for longer than others may; a thread of it that is due a lot, and comes late,
/// gets that all the same.
#[test]
fn who_comes_to_a_crowd_gets_its_part() {
    let drawn = Drawn {
        most_groups: 64,
        ..up_to(128, Bound::Nobody)
    };
    let off = judged(7854, &drawn).group.off();
    assert!(off < 2.0, "{off}");
}

/// A tenant's threads of short periods, and a thread that always wants a CPU, got 60 % of what they were due
/// while they waited.
#[test]
fn who_wakes_and_is_owed_goes_first() {
    for seed in [2577, 4673] {
        let drawn = Drawn {
            most_groups: 64,
            ..up_to(128, Bound::ALL[seed as usize % 3])
        };
        let off = judged(seed, &drawn).group.off();
        assert!(off < 1.0, "{seed}: {off}");
    }
}
