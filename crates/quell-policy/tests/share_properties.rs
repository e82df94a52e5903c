//! Ideals of random hosts, checked by other means than the solver's.
//!
//! - A *certificate*: a division is the ideal exactly if there is a flow for it and, level by
//!   level, no item can rise while the totals of the levels above stand and no item falls that has no
//!   more for its weight. Raising is a search for a cycle in the flow's residual network, with a node
//!   for every thread and CPU.
//! - *Enumeration* on tiny hosts: the CPU time that a set of threads can use together is the least over
//!   all subsets, and the ideal settles the set that stops first, again and again.
#![allow(clippy::unwrap_used)] // a test that cannot go on must fail

use proptest::prelude::*;
use quell_model::{CpuId, CpuSet};
use quell_policy::share::{Group, Ideal, Problem, Thread, ideal};

/// The greatest error of a total, in CPUs.
const EXACT: f64 = 1e-9;
/// The least amount that counts as movable, in CPUs: well above `EXACT`, for many such sums meet in a flow.
const VISIBLE: f64 = 1e-6;

/// The host's residual network: the root, the groups, the threads, the CPUs, the sink.
struct Residual {
    /// Arcs in pairs: `a ^ 1` is `a` backwards.
    arcs: Vec<(usize, f64)>,
    of: Vec<Vec<usize>>,
}

impl Residual {
    fn new(nodes: usize) -> Residual {
        Residual {
            arcs: Vec::new(),
            of: vec![Vec::new(); nodes],
        }
    }

    fn arc(&mut self, from: usize, to: usize, left: f64, back: f64) -> usize {
        let number = self.arcs.len();
        self.arcs.extend([(to, left), (from, back)]);
        self.of[from].push(number);
        self.of[to].push(number + 1);
        number
    }

    /// A path as its arcs, over arcs that `open` allows.
    fn path(
        &self,
        from: usize,
        to: usize,
        open: impl Fn(usize, f64) -> bool,
    ) -> Option<Vec<usize>> {
        let mut by = vec![usize::MAX; self.of.len()];
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for &arc in &self.of[node] {
                let (next, left) = self.arcs[arc];
                if next != from && by[next] == usize::MAX && open(arc, left) {
                    by[next] = arc;
                    queue.push_back(next);
                }
            }
        }
        let mut path = Vec::new();
        let mut node = to;
        while node != from {
            path.push(*by.get(node).filter(|&&arc| arc != usize::MAX)?);
            node = self.arcs[by[node] ^ 1].0;
        }
        Some(path)
    }

    fn fill(&mut self, from: usize, to: usize) -> f64 {
        let mut sent = 0.0;
        while let Some(path) = self.path(from, to, |_, left| left > 1e-13) {
            let part = path
                .iter()
                .map(|&a| self.arcs[a].1)
                .fold(f64::INFINITY, f64::min);
            for arc in path {
                self.arcs[arc].1 -= part;
                self.arcs[arc ^ 1].1 += part;
            }
            sent += part;
        }
        sent
    }
}

/// Checks that `found` is the problem's ideal; `Err`: why it is not.
fn refute(problem: &Problem, found: &Ideal) -> Result<(), String> {
    let (groups, threads) = (problem.groups.len(), problem.threads.len());
    let cpus: Vec<CpuId> = problem.cpus.iter().collect();
    let group_node = |g: Option<usize>| g.map_or(0, |g| g + 1);
    let sink = 1 + groups + threads + cpus.len();

    // Totals: each group's is the sum of its children's, within its limit; each thread's within its demand.
    let mut inside = vec![0.0; 1 + groups];
    for (g, group) in problem.groups.iter().enumerate() {
        inside[group_node(group.parent)] += found.groups[g];
        if found.groups[g] > group.limit.unwrap_or(f64::INFINITY) + EXACT {
            return Err(format!(
                "group {g} has {} CPUs: above its limit",
                found.groups[g]
            ));
        }
    }
    for (t, thread) in problem.threads.iter().enumerate() {
        inside[group_node(thread.group)] += found.threads[t];
        if !(-EXACT..=thread.demand + EXACT).contains(&found.threads[t]) {
            return Err(format!("thread {t} has {} CPUs", found.threads[t]));
        }
    }
    for (g, total) in found.groups.iter().enumerate() {
        if (inside[g + 1] - total).abs() > EXACT {
            return Err(format!(
                "group {g} has {total}, its children {}",
                inside[g + 1]
            ));
        }
    }

    // An assignment of the rates to CPUs, found without regard to the tree.
    let source = sink + 1;
    let mut flow = Residual::new(source + 1);
    for (t, thread) in problem.threads.iter().enumerate() {
        flow.arc(source, 1 + groups + t, found.threads[t], 0.0);
        for (c, &cpu) in cpus.iter().enumerate() {
            if thread.cpus.contains(cpu) {
                flow.arc(1 + groups + t, 1 + groups + threads + c, 1.0, 0.0);
            }
        }
    }
    for c in 0..cpus.len() {
        flow.arc(1 + groups + threads + c, sink, 1.0, 0.0);
    }
    let sent = flow.fill(source, sink);
    if (sent - inside[0]).abs() > EXACT {
        return Err(format!(
            "of {} CPUs given out there are only {sent}",
            inside[0]
        ));
    }

    // The residual network with the tree above the threads.
    let mut tree = Residual::new(sink + 1);
    let mut up = vec![usize::MAX; 1 + groups + threads];
    for (g, group) in problem.groups.iter().enumerate() {
        let most = group.limit.unwrap_or(f64::INFINITY);
        let has = found.groups[g];
        up[g + 1] = tree.arc(group_node(group.parent), g + 1, most - has, has);
    }
    for (t, thread) in problem.threads.iter().enumerate() {
        let has = found.threads[t];
        let node = 1 + groups + t;
        up[node] = tree.arc(group_node(thread.group), node, thread.demand - has, has);
    }
    for arc in (0..flow.arcs.len()).step_by(2) {
        let ((to, left), (from, back)) = (flow.arcs[arc], flow.arcs[arc + 1]);
        if from != source {
            tree.arc(from, to, left, back);
        }
    }

    let mut depth = vec![0; up.len()];
    for (node, depth) in depth.iter_mut().enumerate() {
        let mut at = node;
        while at != 0 {
            at = tree.arcs[up[at] ^ 1].0;
            *depth += 1;
        }
    }
    let level = |node: usize| match node - 1 {
        g if g < groups => found.groups[g] / f64::from(problem.groups[g].weight),
        t => found.threads[t - groups] / f64::from(problem.threads[t - groups].weight),
    };
    for node in 1..up.len() {
        let open = |arc: usize, left: f64| {
            if left <= VISIBLE {
                return false;
            }
            let (to, from) = (tree.arcs[arc].0, tree.arcs[arc ^ 1].0);
            let child = [to, from]
                .into_iter()
                .find(|&n| n < up.len() && up[n] | 1 == arc | 1);
            match child {
                None => true, // between threads, CPUs and the sink
                Some(n) if depth[n] < depth[node] => false,
                // Another item of the level may rise, and fall if it stays above.
                Some(n) if depth[n] == depth[node] && arc != up[n] => {
                    level(n) > level(node) * (1.0 + 1e-6) + 1e-12
                }
                Some(_) => true,
            }
        };
        let parent = tree.arcs[up[node] ^ 1].0;
        if !open(up[node], tree.arcs[up[node]].1) {
            continue;
        }
        let ends: &[usize] = if parent == 0 { &[0, sink] } else { &[parent] };
        for &end in ends {
            if tree.path(node, end, open).is_some() {
                return Err(format!("node {node} at level {} could rise", level(node)));
            }
        }
    }
    Ok(())
}

fn any_demand() -> impl Strategy<Value = f64> {
    prop_oneof![
        3 => Just(1.0),
        1 => Just(0.0),
        2 => (0..=10u32).prop_map(|tenths| f64::from(tenths) / 10.0),
        2 => 0.0..=1.0f64,
    ]
}

fn any_weight() -> impl Strategy<Value = u32> {
    prop_oneof![3 => Just(100u32), 2 => 1..=8u32, 2 => 50..=400u32, 1 => 1..=10_000u32]
}

/// A host of at most `cpus` CPUs, `groups` groups and `threads` threads. The threads' CPU sets are few or
/// many.
fn any_problem(cpus: u32, groups: usize, threads: usize) -> impl Strategy<Value = Problem> {
    (1..=cpus, 0..=groups, 1..=6usize).prop_flat_map(move |(cpus, groups, kinds)| {
        let set = prop_oneof![
            1 => Just(CpuSet::first(cpus)),
            2 => (0..cpus, 0..cpus).prop_map(|(a, b)| (a.min(b)..=a.max(b)).map(CpuId).collect()),
            2 => prop::collection::vec(0..cpus, 1..4)
                .prop_map(|cpus| cpus.into_iter().map(CpuId).collect()),
        ];
        let limit = prop::option::weighted(0.25, 0.0..f64::from(cpus));
        let group = (any::<prop::sample::Index>(), any_weight(), limit);
        let thread = (
            any::<prop::sample::Index>(),
            any_weight(),
            any::<prop::sample::Index>(),
            any_demand(),
        );
        (
            prop::collection::vec(group, groups),
            prop::collection::vec(thread, 0..=threads),
            prop::collection::vec(set, kinds),
            any::<bool>(),
        )
            .prop_map(move |(groups, threads, sets, deep)| {
                let pick = |index: &prop::sample::Index, below: usize| {
                    index.index(below + 1).checked_sub(1) // the root, or one of those before
                };
                Problem {
                    cpus: CpuSet::first(cpus),
                    groups: (groups.iter().enumerate())
                        .map(|(g, (parent, weight, limit))| Group {
                            parent: pick(parent, if deep { g } else { 0 }),
                            weight: *weight,
                            limit: *limit,
                        })
                        .collect(),
                    threads: (threads.iter())
                        .map(|(group, weight, set, demand)| Thread {
                            group: pick(group, groups.len()),
                            weight: *weight,
                            cpus: sets[set.index(sets.len())].clone(),
                            demand: *demand,
                        })
                        .collect(),
                }
            })
    })
}

fn assert_near(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (place, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= EXACT, "at {place}: {a} is not {b}");
    }
}

/// The most that the threads of `members` can use together, when each of the `parts`, pairs of a set of
/// threads and a limit, is respected. By the cut of least capacity: the threads of `busy` are stopped by
/// the CPUs they may use, and the parts without a thread in `busy` by their own limits.
fn most(problem: &Problem, parts: &[(u32, f64)], members: u32) -> f64 {
    let mut least = f64::INFINITY;
    let mut busy = members;
    loop {
        let mut cpus = 0u64;
        let mut sum = 0.0;
        for (mask, limit) in parts {
            let mut wanted = 0.0;
            for (t, thread) in problem.threads.iter().enumerate() {
                if mask & members & !busy & (1 << t) != 0 {
                    wanted += thread.demand;
                }
            }
            sum += if mask & busy == 0 {
                limit.min(wanted)
            } else {
                wanted
            };
        }
        for (t, thread) in problem.threads.iter().enumerate() {
            if busy & (1 << t) != 0 {
                cpus |= thread.cpus.words()[0];
            }
        }
        least = f64::min(least, sum + f64::from(cpus.count_ones()));
        if busy == 0 {
            return least;
        }
        busy = (busy - 1) & members;
    }
}

/// The ideal totals of groups of the root, or of threads of the root, by enumeration of their sets.
fn enumerated(weights: &[u32], most: impl Fn(u32) -> f64) -> Vec<f64> {
    let mut totals = vec![0.0; weights.len()];
    let all = (1u32 << weights.len()) - 1;
    let mut settled = 0u32;
    while settled != all {
        // The set that stops first: the time that it adds to the settled, for its weight.
        let mut first = (f64::INFINITY, 0u32);
        for set in 1..=all {
            if set & settled == 0 {
                let weight: u32 = (0..weights.len())
                    .filter(|i| set & (1 << i) != 0)
                    .map(|i| weights[i])
                    .sum();
                let level = (most(set | settled) - most(settled)) / f64::from(weight);
                if level < first.0 {
                    first = (level, set);
                }
            }
        }
        for (i, &weight) in weights.iter().enumerate() {
            if first.1 & (1 << i) != 0 {
                totals[i] = first.0 * f64::from(weight);
            }
        }
        settled |= first.1;
    }
    totals
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]

    #[test]
    fn nobody_can_rise_without_hurting_a_poorer_one(problem in any_problem(8, 7, 14)) {
        let found = ideal(&problem).unwrap();
        if let Err(why) = refute(&problem, &found) {
            panic!("{why}: {found:?}");
        }
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(
        (problem, turn) in (any_problem(6, 5, 12), any::<prop::sample::Index>()),
    ) {
        // Groups in reverse, so that children come before parents; threads rotated.
        let found = ideal(&problem).unwrap();
        let last = problem.groups.len().wrapping_sub(1);
        let mut other = problem.clone();
        other.groups.reverse();
        other.groups.iter_mut().for_each(|g| g.parent = g.parent.map(|p| last - p));
        other.threads.iter_mut().for_each(|t| t.group = t.group.map(|g| last - g));
        let by = turn.index(problem.threads.len().max(1));
        other.threads.rotate_left(by);
        let mut again = ideal(&other).unwrap();
        again.groups.reverse();
        again.threads.rotate_right(by);
        assert_near(&found.groups, &again.groups);
        assert_near(&found.threads, &again.threads);
    }

    #[test]
    fn only_ratios_of_weights_matter((problem, by) in (any_problem(6, 5, 12), 2..9u32)) {
        let mut light = problem;
        light.groups.iter_mut().for_each(|g| g.weight = g.weight.min(1_000));
        light.threads.iter_mut().for_each(|t| t.weight = t.weight.min(1_000));
        let mut heavy = light.clone();
        heavy.groups.iter_mut().for_each(|g| g.weight *= by);
        heavy.threads.iter_mut().for_each(|t| t.weight *= by);
        let (light, heavy) = (ideal(&light).unwrap(), ideal(&heavy).unwrap());
        assert_near(&light.groups, &heavy.groups);
        assert_near(&light.threads, &heavy.threads);
    }

    #[test]
    fn groups_of_tiny_hosts_get_what_enumeration_gives(problem in any_problem(4, 3, 6)) {
        let mut problem = problem;
        problem.groups.push(Group { parent: None, weight: 70, limit: None });
        problem.groups.iter_mut().for_each(|g| g.parent = None);
        problem.threads.iter_mut().for_each(|t| t.group = t.group.or(Some(0)));
        let parts: Vec<(u32, f64)> = (problem.groups.iter().enumerate())
            .map(|(g, group)| {
                let mask = (problem.threads.iter().enumerate())
                    .filter(|(_, thread)| thread.group == Some(g))
                    .fold(0, |mask, (t, _)| mask | 1 << t);
                (mask, group.limit.unwrap_or(f64::INFINITY))
            })
            .collect();
        let weights: Vec<u32> = problem.groups.iter().map(|g| g.weight).collect();
        let threads_of = |groups: u32| {
            (0..parts.len())
                .filter(|g| groups & (1 << g) != 0)
                .fold(0, |mask, g| mask | parts[g].0)
        };
        let expected = enumerated(&weights, |groups| most(&problem, &parts, threads_of(groups)));
        assert_near(&ideal(&problem).unwrap().groups, &expected);
    }

    #[test]
    fn threads_of_the_root_of_tiny_hosts_get_what_enumeration_gives(
        problem in any_problem(4, 0, 6),
    ) {
        let parts: Vec<(u32, f64)> = (0..problem.threads.len())
            .map(|t| (1 << t, f64::INFINITY))
            .collect();
        let weights: Vec<u32> = problem.threads.iter().map(|t| t.weight).collect();
        let expected = enumerated(&weights, |threads| most(&problem, &parts, threads));
        assert_near(&ideal(&problem).unwrap().threads, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn large_hosts_too(problem in any_problem(128, 64, 200)) {
        let found = ideal(&problem).unwrap();
        if let Err(why) = refute(&problem, &found) {
            panic!("{why}: {found:?}");
        }
    }
}

/// The certificate must refute a wrong division, or it would show nothing.
#[test]
fn the_certificate_refutes_what_is_not_the_ideal() {
    let thread = |group, cpus: &str| Thread {
        group,
        weight: 100,
        cpus: cpus.parse().unwrap(),
        demand: 1.0,
    };
    let group = Group {
        parent: None,
        weight: 100,
        limit: None,
    };
    let problem = Problem {
        cpus: CpuSet::first(2),
        groups: vec![group.clone(), group],
        threads: vec![
            thread(Some(0), "0"),
            thread(Some(0), "1"),
            thread(Some(1), "0"),
            Thread {
                demand: 0.3,
                ..thread(Some(1), "1")
            },
        ],
    };
    let division = |threads: [f64; 4]| Ideal {
        groups: vec![threads[0] + threads[1], threads[2] + threads[3]],
        threads: threads.to_vec(),
    };
    assert_eq!(refute(&problem, &division([0.3, 0.7, 0.7, 0.3])), Ok(()));
    for wrong in [
        [0.5, 0.7, 0.5, 0.3],    // fair on each CPU only: the second group could rise
        [0.3, 0.7, 0.7, 0.2],    // some of CPU 1 is lost
        [0.35, 0.65, 0.65, 0.3], // lost on CPU 1, and groups of 1.0 and 0.95
        [0.2, 0.8, 0.8, 0.2],    // the groups are right, their threads are not
        [0.4, 0.7, 0.7, 0.3],    // more than there is of CPU 0
        [0.3, 0.6, 0.6, 0.4],    // more than the demand
    ] {
        assert!(refute(&problem, &division(wrong)).is_err(), "{wrong:?}");
    }
    let mut sums = division([0.3, 0.7, 0.7, 0.3]);
    sums.groups[0] = 1.1;
    assert!(refute(&problem, &sums).is_err());
}
