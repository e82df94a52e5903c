use super::predict::*;
use super::*;
use proptest::prelude::*;

mod steady;

const SECOND: u64 = 1_000_000_000;

/// The switch rate of a guest whose requests take `per_request` of CPU time, in CPUs per thousand requests a
/// second, and whose scheduler switches once for each request that finds its thread asleep: fewer and
/// fewer as the CPUs fill.
fn switches(cpus: u32, used: f64, per_request: f64) -> f64 {
    let part = (used / f64::from(cpus)).min(1.0);
    used / per_request * (1.0 - part * part)
}

/// A guest with a clock.
struct Rig {
    guest: Guest,
    settings: Settings,
    second: u64,
}

impl Rig {
    /// A guest of eight vCPUs, on a machine with hyperthreads.
    fn new() -> Rig {
        let settings = Settings::default();
        Rig {
            guest: Guest::new(8, 2, 0, &settings),
            settings,
            second: 0,
        }
    }

    fn says(&mut self, used: f64, switches: f64) -> Option<(u32, Why)> {
        self.second += 1;
        let load = Load {
            used,
            switches: Some(switches),
        };
        self.guest.next(load, self.second * SECOND, &self.settings)
    }

    /// Runs for `seconds` under `load`, the CPUs that it would use if it had them; returns the changes with
    /// their times.
    fn under(&mut self, seconds: u64, load: f64) -> Vec<(u64, u32, Why)> {
        let mut changes = Vec::new();
        for _ in 0..seconds {
            let cpus = self.guest.cpus();
            let used = load.min(f64::from(cpus));
            if let Some((to, why)) = self.says(used, switches(cpus, load, 0.01).max(1.0)) {
                changes.push((self.second, to, why));
            }
        }
        changes
    }
}

fn tried(why: &Why) -> bool {
    matches!(
        why,
        Why::TryMore | Why::TryFewer | Why::Back { .. } | Why::Again { .. }
    )
}

/// The four stages of Fig. 9.
#[test]
fn trials_give_way_to_curves() {
    let mut rig = Rig::new();
    // (a) Nothing is known: fewer and fewer CPUs, until they would be too full.
    let first = rig.under(20, 1.0);
    let counts: Vec<u32> = first.iter().map(|it| it.1).collect();
    assert_eq!(counts, [6, 4, 2], "{first:?}");
    assert!(first.iter().all(|it| it.2 == Why::TryFewer), "{first:?}");
    // (b) More load: up, one too far, and back.
    let second = rig.under(20, 2.5);
    assert_eq!(second[0].1, 4, "{second:?}");
    assert_eq!(second.last().unwrap().1, 4, "{second:?}");
    assert!(
        matches!(second.last().unwrap().2, Why::Back { .. }),
        "{second:?}"
    );
    // (c) Many loads, as they come in a day.
    for step in 0..60 {
        rig.under(9, 0.4 + f64::from(step * 37 % 60) / 10.0);
    }
    // (d) All is known: at once, as its switches show.
    for load in [0.6, 5.5, 1.9, 3.1, 4.4, 0.9, 2.6] {
        // A load above the guest's CPUs cannot be seen.
        let changes = rig.under(12, load);
        assert!(
            !changes.iter().any(|it| tried(&it.2)),
            "{load}: {changes:?}"
        );
        let enough = |cpus: &u32| {
            let few = switches(*cpus, load, 0.01);
            *cpus == 8
                || load <= 0.8 * f64::from(*cpus) && few >= 0.7 * switches(cpus + 2, load, 0.01)
        };
        let best = [2, 4, 6, 8].into_iter().find(enough).unwrap();
        assert!(
            rig.guest.cpus().abs_diff(best) <= 2,
            "{load}: {} and not {best}",
            rig.guest.cpus()
        );
    }
}

#[test]
fn a_trial_from_more_than_there_are_is_none() {
    let mut rig = Rig::new();
    rig.under(4, 1.0);
    assert_eq!(rig.guest.cpus(), 6);
    rig.guest.can_use(4);
    // Too few after a trial from eight: as many as there are.
    for _ in 0..10 {
        assert_eq!(rig.says(3.9, 5_000.0), None);
    }
    assert_eq!(rig.guest.cpus(), 4);
}

/// The first second after a trial is below the load's mean, at which the rate on as few CPUs is not known.
#[test]
fn a_trial_that_succeeded_is_not_tried_the_other_way() {
    let mut rig = Rig::new();
    let silent = Load {
        used: 4.3,
        switches: None,
    };
    for _ in 0..12 {
        rig.second += 1;
        let next = (rig.guest).next(silent, rig.second * SECOND, &rig.settings);
        assert_eq!(next, None, "{}", rig.second);
    }
    assert_eq!(rig.says(4.3, 20_000.0), Some((6, Why::TryFewer)));
    for used in [4.3, 4.3, 3.8, 4.3, 4.2, 4.3] {
        assert_eq!(rig.says(used, 18_000.0), None, "{used}");
    }
}

/// Section 6.2, Nginx: its loads as far as the paper gives them.
#[test]
fn the_papers_day_goes_as_it_says() {
    let mut rig = Rig::new();
    // A low load: to two CPUs within ten seconds or so.
    let first: Vec<_> = (0..12)
        .filter_map(|_| rig.says(0.6, 6000.0))
        .map(|it| it.0)
        .collect();
    assert_eq!((first, rig.guest.cpus()), (vec![6, 4, 2], 2));
    // 184 % of two CPUs: four at once.
    assert_eq!(rig.says(1.84, 9000.0), Some((4, Why::Full)));
    for _ in 0..2 {
        assert_eq!(rig.says(2.2, 15000.0), None, "it settles");
    }
    // 55 % of each: six would be used for 37 %.
    for _ in 0..20 {
        assert_eq!(rig.says(2.2, 15000.0), None);
    }
    // More load: six are tried, and switch by 21 % more, which is not 30.
    assert_eq!(rig.says(2.8, 20000.0), Some((6, Why::TryMore)));
    for _ in 0..2 {
        assert_eq!(rig.says(2.8, 24200.0), None, "it settles");
    }
    let Some((4, Why::Back { part })) = rig.says(2.8, 24200.0) else {
        panic!("it stays")
    };
    assert!((part - 1.0 / 1.21).abs() < 1e-9);
    for _ in 0..10 {
        assert_eq!(rig.says(2.8, 20000.0), None, "and is not tried again");
    }
    // Much more load: six, without a trial, as four are too full.
    assert_eq!(rig.says(3.6, 21000.0), Some((6, Why::Full)));
    // Eight would be used for 45 %: tried, and of no use.
    let tried: Vec<_> = (0..10).filter_map(|_| rig.says(3.6, 30000.0)).collect();
    assert_eq!(tried, [(8, Why::TryMore), (6, Why::Back { part: 1.0 })]);
    // A load that was seen before: to the right number at once, without a trial.
    let back: Vec<_> = (0..12).filter_map(|_| rig.says(0.6, 6000.0)).collect();
    assert_eq!(back, [(2, Why::Known)]);
}

/// Section 6.2.3, Memcached: from 10 to 80 % of its load, for which it needs six.
#[test]
fn a_step_takes_two_adjustments() {
    let mut rig = Rig::new();
    rig.under(20, 0.55);
    assert_eq!(rig.guest.cpus(), 2);
    let begun = rig.second;
    let changes = rig.under(15, 4.4);
    let counts: Vec<u32> = changes.iter().map(|it| it.1).collect();
    assert_eq!(counts[..2], [4, 6], "{changes:?}");
    assert!(changes[1].0 - begun <= 4, "{changes:?}");
}

/// Appendix A.3: a guest whose requests take several threads switches more the more it does, on any number
/// of CPUs.
#[test]
fn a_guest_whose_switches_rise_keeps_a_fifth_of_its_cpus() {
    let mut rig = Rig::new();
    let mut seen = Vec::new();
    for load in [0.5_f64, 1.5, 3.0, 4.5, 6.0, 3.0, 1.5, 5.0, 2.0, 4.0] {
        for _ in 0..15 {
            let cpus = f64::from(rig.guest.cpus());
            let used = load.min(cpus);
            rig.says(used, 1000.0 * used);
        }
        let part = load / f64::from(rig.guest.cpus());
        assert!(part <= 0.8, "{load} on {}", rig.guest.cpus());
        seen.push(part);
    }
    assert!(rig.guest.profile().rises());
    // The switches of other guests do not rise.
    let mut rig = Rig::new();
    (0..40).for_each(|step| drop(rig.under(8, 0.4 + f64::from(step * 37 % 40) / 8.0)));
    assert!(!rig.guest.profile().rises());
}

/// The same part of each CPU, and the same part of the switches: on two CPUs requests wait for each other
/// for far longer than on six.
#[test]
fn where_requests_wait_long_switches_have_to_be_alike() {
    for (used, few, many, alike, kept) in [
        // Two of four CPUs.
        (1.0, 2, 4, 0.83, 2),
        (1.5, 2, 4, 0.83, 4),
        (1.5, 2, 4, 0.97, 2),
        // One thread that computes.
        (1.0, 2, 4, 0.75, 2),
        // Four of six, six of eight.
        (2.8, 4, 6, 0.83, 4),
        (3.1, 4, 6, 0.83, 6),
        (4.5, 6, 8, 0.83, 6),
        (4.77, 6, 8, 0.83, 8),
    ] {
        let mut rig = Rig::new();
        // Its rate on more CPUs than these makes no difference.
        for _ in 0..60 {
            let switches = match rig.guest.cpus() {
                cpus if cpus <= few => alike * 1e4,
                _ => 1e4,
            };
            let switches = if rig.guest.cpus() < few {
                0.0
            } else {
                switches
            };
            rig.says(used, switches);
        }
        assert_eq!(
            rig.guest.cpus(),
            kept,
            "{used} of {few}, {alike} as many as with {many}"
        );
    }
}

/// A guest without a guest agent.
#[test]
fn who_says_nothing_is_judged_by_use() {
    let settings = Settings::default();
    let mut guest = Guest::new(8, 2, 0, &settings);
    let mut second = 3;
    for (used, cpus) in [
        (1.0, 2),
        (1.7, 4),
        (3.0, 4),
        (6.5, 8),
        (5.0, 8),
        (2.0, 4),
        (0.5, 2),
    ] {
        let load = Load {
            used,
            switches: None,
        };
        guest.next(load, second * SECOND, &settings);
        assert_eq!(guest.cpus(), cpus, "{used}");
        second += 3;
    }
}

fn name(number: usize) -> TenantName {
    format!("vm{number}").as_str().into()
}

/// A host of `cores` cores of two CPUs, in last-level caches of four cores.
fn host(cores: u32) -> Topology {
    let mut topology = Topology::flat(2 * cores);
    for cpu in &mut topology.cpus {
        cpu.core = cpu.id.0 % cores;
        cpu.llc = cpu.core / 4;
    }
    topology
}

fn seen(name: &TenantName, used: f64) -> Seen<'_> {
    Seen {
        name,
        vcpus: 8,
        batch: false,
        used,
        emulated: 0.0,
        says: None,
    }
}

/// Algorithm 1: the used CPU time, and the number of cores of two CPUs for it.
#[test]
fn emulators_have_between_half_and_seven_tenths_to_do() {
    let mut pools = Pools::new(Settings::default());
    let (topology, vm) = (host(16), name(0));
    for (second, (used, cores)) in [
        (0.2, 1),
        (1.3, 1),
        // 75 %: to below 50.
        (1.5, 2),
        (2.7, 2),
        (2.9, 3),
        (4.1, 3),
        (9.0, 10),
        // 45 %: as long as it is below 70.
        (8.9, 7),
        (7.1, 7),
        (0.0, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let it = Seen {
            emulated: used,
            ..seen(&vm, 0.5)
        };
        let division = pools.second(second as u64 * SECOND, &topology, &[it], None);
        assert_eq!(division.emulators.len(), 2 * cores, "{used}");
    }
}

#[test]
fn who_does_nothing_has_no_group_until_it_does() {
    let mut pools = Pools::new(Settings::default());
    let (topology, vms) = (host(16), [name(0), name(1), name(2)]);
    let mut divide = |second: u64, used: [f64; 3]| {
        let mut all: Vec<_> = vms
            .iter()
            .zip(used)
            .map(|(name, used)| seen(name, used))
            .collect();
        all[2].batch = true;
        pools.second(second * SECOND, &topology, &all, None)
    };
    let first = divide(1, [3.0, 0.0, 4.0]);
    assert!(first.guests[&vms[0]].own && first.guests[&vms[1]].own);
    // A batch guest has the CPUs that no other needs.
    assert_eq!(first.guests[&vms[2]].cpus, first.idle);
    assert_eq!(first.guests[&vms[2]].online, 8);
    let division = (2..=12)
        .map(|second| divide(second, [3.0, 0.001, 4.0]))
        .last()
        .unwrap();
    assert!(!division.guests[&vms[1]].own);
    assert_eq!(division.guests[&vms[1]].cpus, division.idle);
    let division = divide(13, [3.0, 0.02, 4.0]);
    assert!(division.guests[&vms[1]].own);
    assert_eq!(
        division.guests[&vms[0]].online as usize,
        division.guests[&vms[0]].cpus.len()
    );
}

#[test]
fn where_cores_lack_groups_are_as_equal_as_these_allow() {
    let mut pools = Pools::new(Settings::default());
    let (topology, vms) = (host(6), [name(0), name(1), name(2)]);
    let mut sizes = Vec::new();
    for second in 1..=40 {
        let all: Vec<_> = vms
            .iter()
            .map(|vm| seen(vm, 3.0_f64.min(f64::from(pools.of(vm).max(1)))))
            .collect();
        let division = pools.second(second * SECOND, &topology, &all, None);
        sizes = division.guests.values().map(|it| it.cpus.len()).collect();
    }
    sizes.sort_unstable();
    // One core of six is the emulators'.
    assert_eq!(sizes, [2, 4, 4]);
}

/// Both guests begin with as many CPUs as they have vCPUs, more than there are.
#[test]
fn who_begins_where_cores_lack_gets_as_much_as_others_at_once() {
    let mut pools = Pools::new(Settings::default());
    let (topology, vms) = (host(8), [name(0), name(1)]);
    let all: Vec<_> = vms
        .iter()
        .map(|vm| Seen {
            emulated: 1.5,
            ..seen(vm, 6.0)
        })
        .collect();
    let division = pools.second(SECOND, &topology, &all, None);
    assert_eq!(division.emulators.len(), 8);
    let sizes: Vec<usize> = division.guests.values().map(|it| it.cpus.len()).collect();
    assert_eq!(sizes, [4, 4]);
    assert!(division.guests.values().all(|it| it.lacks == 4));
}

/// Guests that use all their CPUs, beside tenants that are no guests and use a number of CPUs, as far as the
/// idle pool has them (`None`: there are no such tenants).
#[test]
fn the_idle_pool_is_kept_for_those_that_need_it() {
    for (cores, guests, rest, idle, groups) in [
        // No other tenant, and one that is nearly idle: a core.
        (8, 2, None, 0, vec![8, 6]),
        (8, 2, Some(0.0), 2, vec![6, 6]),
        // Two hyperthreads for one CPU's worth, four for two, six for four: requests do not wait longer
        // than on four at 72 %.
        (8, 2, Some(1.0), 2, vec![6, 6]),
        (8, 2, Some(2.0), 4, vec![6, 4]),
        (12, 2, Some(4.0), 6, vec![8, 8]),
        // The other tenants want as much as guests do: as equal as cores allow.
        (8, 2, Some(9.0), 6, vec![4, 4]),
        (8, 3, Some(9.0), 4, vec![4, 4, 2]),
        (12, 2, Some(9.0), 8, vec![8, 6]),
    ] {
        let mut pools = Pools::new(Settings::default());
        let topology = host(cores);
        let vms: Vec<_> = (0..guests).map(name).collect();
        let mut last = None;
        for second in 1..=60 {
            let all: Vec<_> = vms
                .iter()
                .map(|vm| seen(vm, f64::from(pools.of(vm).max(1))))
                .collect();
            let has = f64::from(pools.idle());
            let rest = rest.map(|it| if second > 1 { has.min(it) } else { it });
            last = Some(pools.second(second * SECOND, &topology, &all, rest));
        }
        let division = last.unwrap();
        let mut sizes: Vec<_> = division.guests.values().map(|it| it.cpus.len()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let case = format!("{cores} cores, {guests} guests, {rest:?}");
        assert_eq!((division.idle.len(), sizes), (idle, groups), "{case}");
    }
}

/// Two cores of two hyperthreads and eight of one: a move that is more equal in cores is not always more
/// equal in CPUs.
#[test]
fn cores_need_not_be_alike() {
    let mut topology = host(10);
    topology.cpus.retain(|it| it.core < 2 || it.id.0 == it.core);
    let (mut pools, vms) = (Pools::new(Settings::default()), [name(0), name(1)]);
    let mut before = 0;
    for second in 1..=60 {
        let all: Vec<_> = vms
            .iter()
            .zip([2, 4])
            .map(|(vm, vcpus)| Seen {
                vcpus,
                ..seen(vm, f64::from(pools.of(vm).max(1)))
            })
            .collect();
        let division = pools.second(second * SECOND, &topology, &all, Some(9.0));
        let [a, b] = [0, 1].map(|it| division.guests[&vms[it]].cpus.len());
        let rest = [&division.emulators, &division.idle];
        let rest: usize = rest.into_iter().map(CpuSet::len).sum();
        assert_eq!(a + b + rest, 12);
        // A guest that wants more does not lose what it has.
        assert!(b >= before, "{second}: {before}, {b}");
        before = b;
    }
    assert!(before >= 2, "{before}");
}

/// A finished batch of other tenants gives room to guests once it has been over for a while, and a new wish
/// of theirs is met at once.
#[test]
fn what_the_idle_pool_needed_lately_is_kept() {
    let mut pools = Pools::new(Settings::default());
    let (topology, vm) = (host(5), name(0));
    let mut sizes = Vec::new();
    for second in 1..=60 {
        let used = if (20..40).contains(&second) { 0.1 } else { 3.0 };
        let all = [seen(&vm, f64::from(pools.of(&vm).max(1)))];
        let division = pools.second(second * SECOND, &topology, &all, Some(used));
        let now = (division.idle.len(), division.guests[&vm].cpus.len());
        if sizes.last().is_none_or(|(_, before)| *before != now) {
            sizes.push((second, now));
        }
    }
    assert_eq!(sizes, [(1, (4, 4)), (30, (2, 6)), (40, (4, 4))]);
}

/// The verdict of appendix B.4.
#[test]
fn the_verdict_is_what_was_constant() {
    let cases = [
        // Cores, the use of each of three guests, that of tenants that are no guests: advice after 50 s, and
        // after 70.
        (32, 1.0_f64, None, Advice::Hold, Advice::Accept),
        (6, 1.2, None, Advice::Hold, Advice::Hold),
        (5, 7.5, None, Advice::Hold, Advice::Migrate),
        (8, 1.0, Some(0.5), Advice::Hold, Advice::Accept),
        // The other tenants need three of four idle cores.
        (8, 1.0, Some(4.5), Advice::Hold, Advice::Hold),
    ];
    for (cores, used, rest, early, late) in cases {
        let mut pools = Pools::new(Settings::default());
        let (topology, vms) = (host(cores), [name(0), name(1), name(2)]);
        let mut found = Vec::new();
        for second in 1..=70 {
            let all: Vec<_> = vms
                .iter()
                .map(|vm| {
                    let has = pools.of(vm).max(1);
                    seen(vm, used.min(f64::from(has)))
                })
                .collect();
            found.push(pools.second(second * SECOND, &topology, &all, rest).verdict);
        }
        assert_eq!(
            (found[49].advice, found[69].advice),
            (early, late),
            "{cores} cores: {:?}",
            found[69]
        );
        assert_eq!(found[69].until_ns, 130 * SECOND);
        let last = &found[69];
        assert_eq!((last.would_free.len(), last.what_if.len()), (3, 3));
        // The machine to go is the smallest that ends the lack, if one does.
        let [first, others @ ..] = &last.what_if[..] else {
            panic!("{last:?}");
        };
        let least = others.iter().map(|it| it.lacking).min().unwrap();
        assert!(first.lacking <= least, "{last:?}");
        assert_eq!(first.lacking, 0, "{last:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever figures guests report: only tenants of the idle pool share a core, every tenant has
    /// CPUs, and no guest has more than it can use.
    #[test]
    fn the_division_is_one(
        cores in 1..12_u32,
        history in prop::collection::vec(prop::collection::vec((0..6_usize, 0.0..9.0, prop::num::f64::ANY, prop::num::f64::ANY, 0.0..3.0, any::<bool>()), 0..6), 1..60),
        others in prop::option::of(0.0..20.0),
        whole in 1..12_u32,
    ) {
        let mut pools = Pools::new(Settings::default());
        for (second, guests) in history.iter().enumerate() {
            // CPUs come and go.
            let mut topology = host(if second % 20 == 19 { cores.div_ceil(2) } else { cores });
            // Some cores have one hyperthread.
            topology.cpus.retain(|it| it.core < whole || it.id.0 == it.core);
            if second % 20 == 9 {
                topology.cpus.retain(|it| it.core >= cores / 2);
            }
            let mut names: Vec<_> = guests.iter().map(|it| name(it.0)).collect();
            names.dedup();
            let all: Vec<_> = names.iter().zip(guests).enumerate().filter(|(at, (name, _))| !names[..*at].contains(name)).map(|(_, (name, it))| Seen {
                name,
                vcpus: 1 + it.0 as u32,
                batch: it.5,
                used: it.1,
                emulated: it.4,
                says: Some(Says { used: it.2, switches: it.3 }),
            }).collect();
            let division = pools.second(second as u64 * SECOND, &topology, &all, others);
            let mut owned = vec![division.emulators.clone(), division.idle.clone()];
            for it in &all {
                let group = &division.guests[it.name];
                prop_assert!(!group.cpus.is_empty(), "{} has none", it.name);
                prop_assert!((1..=it.vcpus).contains(&group.online));
                if group.own {
                    prop_assert!(group.cpus.len() as u32 <= it.vcpus.div_ceil(2) * 2);
                    owned.push(group.cpus.clone());
                }
                // Where tenants without a group have less than they need, no group could have given them
                // more.
                let lack = others.is_some_and(|used| profile::waits_long(division.idle.len() as u32, used));
                prop_assert!(!lack || !group.own || group.cpus.len() < division.idle.len() + 4);
            }
            // All CPUs, once each, and cores whole.
            let total: usize = owned.iter().map(CpuSet::len).sum();
            prop_assert_eq!(total, topology.cpus.len());
            for cpu in &topology.cpus {
                let of = |set: &CpuSet| topology.cpus.iter().filter(|it| it.core == cpu.core && set.contains(it.id)).count();
                prop_assert!(owned.iter().any(|set| of(set) == of(&topology.online())));
            }
            prop_assert!(!division.emulators.is_empty());
        }
    }
}
