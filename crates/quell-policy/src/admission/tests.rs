use super::*;
use proptest::prelude::*;
use quell_model::{CpuId, TenantName};
use quell_testkit::exhaustive;

fn ms(ms: f64) -> u64 {
    (ms * 1e6) as u64
}

fn low(budget: f64, period: f64) -> Server {
    Server {
        criticality: Criticality::Low,
        period_ns: ms(period),
        budget_ns: ms(budget),
        pessimistic_ns: ms(budget),
    }
}

fn high(budget: f64, pessimistic: f64, period: f64) -> Server {
    Server {
        criticality: Criticality::High,
        pessimistic_ns: ms(pessimistic),
        ..low(budget, period)
    }
}

/// Akita's Table 1, from type 1 on.
fn table_1() -> [Server; 6] {
    [
        high(5.0, 25.0, 100.0),
        low(25.0, 100.0),
        low(50.0, 100.0),
        low(5.0, 50.0),
        low(10.0, 100.0),
        high(10.0, 50.0, 100.0),
    ]
}

/// Settings without a reserve and without overhead.
fn bare(test: AdmissionTest) -> CriticalitySettings {
    CriticalitySettings {
        test,
        reserve_percent: 0.0,
        overhead_us: 0.0,
        temperature: 0,
    }
}

/// The paper's hosts, and sets known from the literature: for each test, the condition and whether the set
/// fits.
#[test]
fn conditions() {
    use AdmissionTest::*;
    let [type1, type2, type3, type4, type5, type6] = table_1();
    let memcached = vec![type1, type2, type2, type2];
    let steps = vec![type6, type2, type2, type2];
    // servers, test, value, limit, x, fits
    let cases = [
        // Section 4.2: 5 of 100 ms, in the worst case 25, beside three of 25.
        (memcached.clone(), EdfVd, 0.2 * 0.75 + 0.25, 1.0, 0.2, true),
        (memcached.clone(), Edf, 1.0, 1.0, 1.0, true),
        (
            memcached.clone(),
            Rm,
            1.0,
            4.0 * (2f64.powf(0.25) - 1.0),
            1.0,
            false,
        ),
        // All periods are equal: rate-monotonic is as good as EDF.
        (memcached, RmExact, 1.0, 1.0, 1.0, true),
        // Section 4.4: EDF would have to provide for 125 %.
        (steps.clone(), EdfVd, 0.4 * 0.75 + 0.5, 1.0, 0.4, true),
        (steps.clone(), Edf, 1.25, 1.0, 1.0, false),
        (steps, RmExact, 1.25, 1.0, 1.0, false),
        // Section 4.1.
        (
            vec![type2, type3, type4, type5],
            EdfVd,
            0.95,
            1.0,
            1.0,
            true,
        ),
        (
            vec![type2, type3, type4, type5, type5],
            EdfVd,
            1.05,
            1.0,
            1.0,
            false,
        ),
        // Five servers of high criticality of 25 % at the most: a CPU's worth and a quarter.
        (vec![type1; 5], EdfVd, 1.25, 1.0, 0.25, false),
        (vec![type1; 4], EdfVd, 1.0, 1.0, 0.2, true),
        // Liu and Layland's bound for two, and a set between it and the exact test: 1/2 and 1/2 with
        // periods that divide each other.
        (
            vec![low(1.0, 2.0), low(2.0, 4.0)],
            Rm,
            1.0,
            2.0 * (2f64.sqrt() - 1.0),
            1.0,
            false,
        ),
        (
            vec![low(1.0, 2.0), low(2.0, 4.0)],
            RmExact,
            1.0,
            1.0,
            1.0,
            true,
        ),
        // Joseph and Pandya: the second is done after 5 of 5 ms, and later if it needs more.
        (
            vec![low(2.0, 4.0), low(1.0, 5.0)],
            RmExact,
            3.0 / 5.0,
            1.0,
            1.0,
            true,
        ),
        (
            vec![low(2.0, 4.0), low(2.5, 5.0)],
            RmExact,
            6.5 / 5.0,
            1.0,
            1.0,
            false,
        ),
        (vec![low(2.0, 4.0), low(2.5, 5.0)], Edf, 1.0, 1.0, 1.0, true),
        (vec![], EdfVd, 0.0, 1.0, 1.0, true),
        (vec![], Rm, 0.0, 1.0, 1.0, true),
    ];
    for (servers, test, value, limit, x, fits) in cases {
        let found = check(test, &servers);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(
            found.fits == fits
                && near(found.condition.value, value)
                && near(found.condition.limit, limit)
                && near(found.deadline_factor, x),
            "{test} of {servers:?}: {found:?}"
        );
    }
}

/// A set that EDF-VD refuses by utilization may fit all the same.
#[test]
fn demand_accepts_what_utilizations_refuse() {
    let set = [
        high(2.0, 4.0, 10.0),
        high(10.0, 50.0, 100.0),
        low(30.0, 50.0),
    ];
    assert!(!check(AdmissionTest::EdfVd, &set).fits);
    let found = check(AdmissionTest::Demand, &set);
    assert!(found.fits, "{found:?}");
    assert!((0.2..1.0).contains(&found.deadline_factor), "{found:?}");
}

#[test]
fn the_reserve_and_switching_are_provided_for() {
    let settings = CriticalitySettings {
        test: AdmissionTest::Edf,
        reserve_percent: 5.0,
        overhead_us: 100.0,
        temperature: 0,
    };
    let found = check_with(&settings, &[low(10.0, 100.0), low(1.0, 10.0)]);
    let due = (10.0 + 0.1) / 100.0 + (1.0 + 0.1) / 10.0 + 0.05;
    assert!((found.condition.value - due).abs() < 1e-12, "{found:?}");
    // 0.95 less the time for two switches; the reserve does not grow.
    let factor = headroom(&settings, &[low(10.0, 100.0), low(1.0, 10.0)]);
    assert!(
        (factor - (0.95 - 0.001 - 0.01) / 0.2).abs() < 1e-4,
        "{factor}"
    );
    let factor = headroom(&settings, &[low(1.0, 1.0)]);
    assert!((factor - (0.95 - 0.1)).abs() < 1e-5, "{factor}");
    // High criticality pays for each part of its budget in LO mode: as many parts as are 0.5 ms, at most 16.
    for (test, budget, most, parts) in [
        (AdmissionTest::EdfVd, 0.9, 30.0, 1.0),
        (AdmissionTest::EdfVd, 2.5, 30.0, 5.0),
        (AdmissionTest::EdfVd, 20.0, 30.0, 16.0),
        (AdmissionTest::Edf, 0.9, 4.0, 8.0),
    ] {
        let settings = CriticalitySettings {
            test,
            reserve_percent: 0.0,
            ..settings
        };
        let found = check_with(&settings, &[high(budget, most, 100.0)]);
        let due = (most + parts * 0.1) / 100.0;
        assert!((found.condition.value - due).abs() < 1e-12, "{found:?}");
        assert!(found.divisible);
    }
}

#[test]
fn budgets_are_whole_where_they_fit_by_demand_only() {
    let settings = |test| CriticalitySettings {
        test,
        reserve_percent: 0.0,
        overhead_us: 0.0,
        temperature: 0,
    };
    let set = [high(5.0, 50.0, 100.0), low(20.0, 50.0)];
    let found = check_with(&settings(AdmissionTest::Demand), &set);
    assert!(found.fits && found.divisible, "{found:?}");
    let set = [
        high(2.0, 4.0, 10.0),
        high(10.0, 50.0, 100.0),
        low(30.0, 50.0),
    ];
    assert!(!check_with(&settings(AdmissionTest::EdfVd), &set).fits);
    let found = check_with(&settings(AdmissionTest::Demand), &set);
    assert!(found.fits && !found.divisible, "{found:?}");
}

proptest! {
    /// A set that a coarser test accepts is accepted by the finer one, and no test accepts more with
    /// more load.
    #[test]
    fn tests_are_ordered(set in set(100)) {
        use AdmissionTest::*;
        for (coarse, fine) in [(Rm, RmExact), (RmExact, Edf), (Edf, EdfVd), (EdfVd, Demand)] {
            prop_assert!(!check(coarse, &set).fits || check(fine, &set).fits, "{} {}", coarse, fine);
        }
        for test in AdmissionTest::ALL {
            prop_assert!(!check(test, &set).fits || check(test, &set[1..]).fits, "{}", test);
            let factor = headroom(&bare(test), &set);
            prop_assert_eq!(check(test, &set).fits, factor >= 1.0 - 1e-5, "{} {}", test, factor);
        }
    }

    /// No server of an accepted set misses, whenever servers begin and whatever they need; servers of an
    /// accepted set are served by the order of the literature. Time is in whole units here, so that this is
    /// exact.
    #[test]
    fn nothing_that_is_accepted_misses(set in set(12), seed in any::<u64>()) {
        for (test, order) in [(AdmissionTest::Demand, Order::Vd), (AdmissionTest::Edf, Order::Edf), (AdmissionTest::RmExact, Order::Rm)] {
            let found = check(test, &set);
            if found.fits {
                let missed = missed(&set, order, found.deadline_factor, seed);
                prop_assert_eq!(missed, None, "{} x = {}", test, found.deadline_factor);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// No arrival and no need breaks the promises of an accepted set, by exhaustive search.
    #[test]
    fn what_is_accepted_is_kept_whatever_comes(set in set(9)) {
        let set = &set[..set.len().min(3)];
        for test in [AdmissionTest::EdfVd, AdmissionTest::Demand] {
            let found = check(test, set);
            prop_assert!(!found.fits || exhaustive::keeps_with(set, found.deadline_factor), "{test}");
        }
        // A set that exceeds the CPU in either mode cannot be kept.
        let needs = |ns: fn(&Server) -> u64, of: &dyn Fn(&Server) -> bool| -> f64 {
            let of = set.iter().filter(|it| of(it));
            of.map(|it| ns(it) as f64 / it.period_ns as f64).sum()
        };
        let usual = needs(|it| it.budget_ns, &|_| true);
        let worst = needs(|it| it.pessimistic_ns, &|it| it.criticality == Criticality::High);
        prop_assert!(usual.max(worst) <= 1.0 + NEGLIGIBLE || exhaustive::keeps(set) == Some(false), "{usual} {worst}");
    }
}

/// The simulated CPU above can miss: an overfull set does.
#[test]
fn what_is_over_full_misses() {
    let unit = |n: f64| n / 1e6;
    let high = |c, p, t| high(unit(c), unit(p), unit(t));
    let low = |c, t| low(unit(c), unit(t));
    let misses =
        |set: &[Server], order, x| (0..200).any(|seed| missed(set, order, x, seed).is_some());
    let full = [high(4.0, 18.0, 20.0), low(7.0, 10.0)];
    assert!(!check(AdmissionTest::Demand, &full).fits);
    for x in [0.2, 0.4, 0.55, 0.7, 1.0] {
        assert!(misses(&full, Order::Vd, x), "{x}");
    }
    // Plain EDF misses deadlines of a set that EDF-VD serves with shortened deadlines.
    let set = [high(2.0, 8.0, 10.0), low(5.0, 10.0)];
    let x = check(AdmissionTest::Demand, &set).deadline_factor;
    assert!(!misses(&set, Order::Vd, x));
    assert!(misses(&set, Order::Vd, 1.0));
    // Rate-monotonic priorities miss deadlines of a set that EDF serves.
    let full = [low(4.0, 8.0), low(5.0, 10.0)];
    assert!(!misses(&full, Order::Edf, 1.0));
    assert!(misses(&full, Order::Rm, 1.0));
}

/// Sets of servers whose periods, in ns, are at most `longest`.
fn set(longest: u64) -> impl Strategy<Value = Vec<Server>> {
    let server = (2..=longest, 0.0..1.0f64, 0.0..1.0f64, any::<bool>());
    let server = server.prop_map(|(period, part, worst, high)| {
        let budget = 1 + (part * part * (period - 1) as f64) as u64;
        let more = (worst * (period - budget) as f64) as u64;
        Server {
            criticality: if high {
                Criticality::High
            } else {
                Criticality::Low
            },
            period_ns: period,
            budget_ns: budget,
            pessimistic_ns: if high { budget + more } else { budget },
        }
    });
    prop::collection::vec(server, 1..6)
}

#[derive(Clone, Copy)]
enum Order {
    Vd,
    Edf,
    Rm,
}

/// Simulates a CPU that serves by that order, in whole ns; returns the first server that missed its
/// deadline, if any. Servers begin at random times and need random times, often as much as they may.
fn missed(set: &[Server], order: Order, x: f64, seed: u64) -> Option<usize> {
    // xorshift; no better generator is needed.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below.max(1)
    };
    struct Job {
        release: u64,
        left: u64,
        used: u64,
        /// Whether the job has no promise any more.
        dropped: bool,
    }
    let mut next: Vec<u64> = set.iter().map(|it| random(it.period_ns)).collect();
    if random(3) == 0 {
        next.fill(0);
    }
    let mut jobs: Vec<Option<Job>> = set.iter().map(|_| None).collect();
    let mut high_mode = false;
    let vd = matches!(order, Order::Vd);
    for now in 0..1000u64 {
        for (index, server) in set.iter().enumerate() {
            if next[index] != now {
                continue;
            }
            if jobs[index]
                .as_ref()
                .is_some_and(|job| job.left > 0 && !job.dropped)
            {
                return Some(index);
            }
            let is_high = server.criticality == Criticality::High;
            let left = match random(4) {
                0 => server.budget_ns,
                1 => 1 + random(server.budget_ns),
                _ => server.pessimistic_ns,
            };
            jobs[index] = Some(Job {
                release: now,
                left,
                used: 0,
                dropped: vd && high_mode && !is_high,
            });
            next[index] = now + server.period_ns;
        }
        let waits = |job: &Option<Job>| job.as_ref().is_some_and(|it| it.left > 0 && !it.dropped);
        if high_mode && !jobs.iter().any(waits) {
            high_mode = false;
        }
        let key = |index: usize, job: &Job| {
            let server = &set[index];
            let is_high = server.criticality == Criticality::High;
            match order {
                Order::Rm => server.period_ns,
                Order::Vd if is_high && !high_mode => {
                    job.release + (x * server.period_ns as f64) as u64
                }
                Order::Vd | Order::Edf => job.release + server.period_ns,
            }
        };
        let ready = jobs.iter().enumerate();
        let ready = ready.filter_map(|(index, job)| Some((index, job.as_ref()?)));
        let first = ready
            .filter(|(_, job)| job.left > 0 && !job.dropped)
            .min_by_key(|(index, job)| (key(*index, job), *index));
        let Some((first, _)) = first else { continue };
        let job = jobs[first].as_mut()?;
        job.left -= 1;
        job.used += 1;
        let server = &set[first];
        if vd && !high_mode && job.used == server.budget_ns && job.left > 0 {
            high_mode = true;
            for (job, server) in jobs.iter_mut().zip(set) {
                if let (Some(job), Criticality::Low) = (job, server.criticality) {
                    job.dropped = true;
                }
            }
        }
    }
    None
}

fn host(cpus: u32, test: AdmissionTest) -> Host {
    Host::new((0..cpus).map(CpuId), bare(test))
}

fn name(name: &str) -> TenantName {
    TenantName::from(name)
}

#[test]
fn the_first_cpu_with_room_is_taken() {
    let [type1, type2, ..] = table_1();
    let mut host = host(12, AdmissionTest::EdfVd);
    // Section 4.3: an RPC VM, then 24 of 25 % each. Three are beside it, four on each other CPU; so six CPUs
    // and a quarter.
    assert_eq!(host.admit(&name("rpc"), &type1, 1), Ok(vec![CpuId(0)]));
    for n in 0..24 {
        let at = host.admit(&name(&format!("vm{n}")), &type2, 1);
        assert_eq!(at, Ok(vec![CpuId((n + 1) / 4)]), "{n}");
    }
    let idle = host.cpus().iter().filter(|(_, on)| on.is_empty()).count();
    assert_eq!(idle, 5);
    // The seventh CPU has room for three more, the five others for four each.
    assert_eq!(host.more(&type2, 1, 1000), 3 + 5 * 4);
    assert_eq!(host.more(&type2, 1, 7), 7);
    // A tenant's vCPUs are on CPUs of their own.
    let at = host.admit(&name("two"), &type2, 2);
    assert_eq!(at, Ok(vec![CpuId(6), CpuId(7)]));
    host.remove(&name("vm3"));
    assert_eq!(host.admit(&name("late"), &type2, 1), Ok(vec![CpuId(1)]));
    assert!(host.verdict(CpuId(0)).unwrap().fits);
    assert_eq!(host.verdict(CpuId(12)), None);
}

#[test]
fn a_refusal_says_why_and_what_would_do() {
    let mut host = host(2, AdmissionTest::EdfVd);
    assert!(host.admit(&name("a"), &low(80.0, 100.0), 1).is_ok());
    assert!(host.admit(&name("b"), &low(70.0, 100.0), 1).is_ok());
    let refusal = host.admit(&name("c"), &low(40.0, 100.0), 1).unwrap_err();
    assert_eq!(refusal.placed, 0);
    // 0.7 + 0.4 is nearer than 0.8 + 0.4.
    assert_eq!(refusal.nearest, Some(CpuId(1)));
    let condition = refusal.condition.unwrap();
    assert_eq!(condition.what, "U1(1) + U2(1) <= 1");
    assert!((condition.value - 1.1).abs() < 1e-12);
    assert!((refusal.headroom - 1.0 / 1.1).abs() < 1e-5);
    // A quarter less is less of a change than a period a third longer.
    assert_eq!(
        refusal.changes,
        [Change::BudgetNs(ms(30.0)), Change::PeriodNs(133_340_000)]
    );
    // Two at once: one could be placed.
    let refusal = host.admit(&name("d"), &low(25.0, 100.0), 2).unwrap_err();
    assert_eq!((refusal.placed, refusal.nearest), (1, Some(CpuId(0))));
    assert_eq!(
        refusal.changes,
        [
            Change::BudgetNs(ms(20.0)),
            Change::PeriodNs(ms(125.0)),
            Change::Vcpus(1)
        ]
    );
    // No server of a refused tenant is left behind.
    assert_eq!(host.cpus().iter().map(|(_, on)| on.len()).sum::<usize>(), 2);
    // x = 0.2 / 0.3, and x * 0.7 + U2(2) <= 1 for 0.5333.
    let wants = high(20.0, 60.0, 100.0);
    let refusal = host.admit(&name("e"), &wants, 1).unwrap_err();
    assert_eq!(refusal.condition.unwrap().what, "x U1(1) + U2(2) <= 1");
    assert!(
        refusal
            .changes
            .contains(&Change::PessimisticBudgetNs(53_330_000))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Each proposed change makes the tenant fit, and a change smaller by a step does not.
    #[test]
    fn changes_do(placed in prop::collection::vec((0..6usize, 1u32..3), 0..12), asks in 0..6usize, vcpus in 1u32..3) {
        let types = table_1();
        for test in AdmissionTest::ALL {
            let mut host = host(3, test);
            for (n, (kind, vcpus)) in placed.iter().enumerate() {
                let _ = host.admit(&name(&format!("t{n}")), &types[*kind], *vcpus);
            }
            for (cpu, _) in host.cpus() {
                prop_assert!(host.verdict(*cpu).unwrap().fits);
            }
            let wants = types[asks];
            let Err(refusal) = host.admit(&name("more"), &wants, vcpus) else { continue };
            for change in refusal.changes {
                let with = |steps: u64| {
                    let mut server = wants;
                    let mut count = vcpus;
                    match change {
                        Change::BudgetNs(ns) => {
                            server.budget_ns = ns + 10_000 * steps;
                            if server.criticality == Criticality::Low {
                                server.pessimistic_ns = server.budget_ns;
                            }
                        }
                        Change::PessimisticBudgetNs(ns) => server.pessimistic_ns = ns + 10_000 * steps,
                        Change::PeriodNs(ns) => server.period_ns = ns - 10_000 * steps,
                        Change::Vcpus(n) => count = n + steps as u32,
                    }
                    host.clone().admit(&name("more"), &server, count).is_ok()
                };
                prop_assert!(with(0), "{test} {change:?}");
                prop_assert!(!with(1), "{test} {change:?}");
            }
        }
    }
}
