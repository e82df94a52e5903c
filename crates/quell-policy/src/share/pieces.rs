//! The network of a host through which CPU time flows, and the pieces it falls into.
//!
//! Nodes are numbered: the root, the groups and threads by depth (so parents come before their
//! children), the *sets* (threads that may run on the same CPUs go through one node), the *classes*
//! (CPUs that the same sets contain are one node). Arcs lead from parent to child, limited by the
//! child's limit or demand; from a thread to its set and from a set to its classes, unlimited; and
//! out of the network from a class, limited by its number of CPUs.
//!
//! A minimum cut that stays full in all solutions that are still possible parts the network in two
//! that have no decision in common any more. The flow across it is fixed: it leaves one piece at
//! `out` and enters the other as the `supply` of a *top*. So in every piece, all that is supplied
//! leaves, and a tree node is either a top or in the same piece as its parent.

use super::Problem;
use quell_model::CpuSet;
use std::collections::BTreeMap;

/// The index that stands for no node.
pub(super) const NONE: usize = usize::MAX;

/// The node of the root.
pub(super) const ROOT: usize = 0;

/// The network, and the totals settled so far.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The number of nodes for the root, groups and threads; sets and classes come after them.
    pub(super) tree: usize,
    /// Of tree nodes: the parent, [`NONE`] for the root.
    pub(super) parent: Vec<usize>,
    /// Of tree nodes: the children.
    pub(super) children: Vec<Vec<usize>>,
    /// Of tree nodes: the distance from the root.
    pub(super) depth: Vec<u32>,
    /// Of tree nodes: the weight among siblings.
    pub(super) weight: Vec<f64>,
    /// Of tree nodes: the limit or demand, in CPUs.
    pub(super) most: Vec<f64>,
    /// Of threads: the set's node; of other nodes [`NONE`].
    pub(super) set: Vec<usize>,
    /// Of sets: the classes; of other nodes empty.
    pub(super) classes: Vec<Vec<usize>>,
    /// The fixed flow that leaves the network at a node, in CPUs.
    pub(super) out: Vec<f64>,
    /// Whether a node's total is settled and supplied to it, not by its parent.
    pub(super) top: Vec<bool>,
    /// The supply of a top, in CPUs.
    pub(super) supply: Vec<f64>,
    /// The piece each node is in.
    pub(super) piece: Vec<u32>,
    /// The node of each group.
    pub(super) groups: Vec<usize>,
    /// The node of each thread.
    pub(super) threads: Vec<usize>,
}

impl Pieces {
    /// The whole network as one piece, number 0. The problem must have passed its check, which
    /// found `depths`.
    pub(super) fn new(problem: &Problem, depths: &[u32]) -> Pieces {
        let depth_in = |group: Option<usize>| group.map_or(1, |g| depths[g] + 1);
        let group_count = problem.groups.len();
        let depth_of = |i: usize| match i.checked_sub(group_count) {
            None => depths[i],
            Some(thread) => depth_in(problem.threads[thread].group),
        };
        let mut order: Vec<usize> = (0..group_count + problem.threads.len()).collect();
        order.sort_by_key(|&i| depth_of(i));
        let tree = order.len() + 1;
        let mut node_of = vec![ROOT; order.len()];
        for (place, &i) in order.iter().enumerate() {
            node_of[i] = place + 1;
        }
        let (groups, threads) = node_of.split_at(group_count);

        let (sets, classes) = classes(problem);
        let nodes = tree + sets.members.len() + classes.len();
        let mut all = Pieces {
            tree,
            parent: vec![NONE; tree],
            children: vec![Vec::new(); tree],
            depth: vec![0; tree],
            weight: vec![1.0; tree],
            most: vec![f64::INFINITY; tree],
            set: vec![NONE; tree],
            classes: vec![Vec::new(); nodes],
            out: vec![0.0; nodes],
            top: vec![false; nodes],
            supply: vec![0.0; nodes],
            piece: vec![0; nodes],
            groups: groups.to_vec(),
            threads: threads.to_vec(),
        };
        for (&node, group) in groups.iter().zip(&problem.groups) {
            all.hang(node, group.parent, group.weight, group.limit);
        }
        for (thread, (&node, found)) in threads.iter().zip(&problem.threads).enumerate() {
            all.hang(node, found.group, found.weight, Some(found.demand));
            all.set[node] = tree + sets.of_thread[thread];
        }
        for node in 1..tree {
            let parent = all.parent[node];
            all.depth[node] = all.depth[parent] + 1;
            all.children[parent].push(node);
        }
        for (class, (sets, cpus)) in classes.iter().enumerate() {
            let node = nodes - classes.len() + class;
            all.out[node] = f64::from(*cpus);
            for &set in sets {
                all.classes[tree + set as usize].push(node);
            }
        }
        all
    }

    fn hang(&mut self, node: usize, group: Option<usize>, weight: u32, most: Option<f64>) {
        self.parent[node] = group.map_or(ROOT, |g| self.groups[g]);
        self.weight[node] = f64::from(weight);
        self.most[node] = most.unwrap_or(f64::INFINITY);
    }

    /// The number of nodes.
    pub(super) fn len(&self) -> usize {
        self.piece.len()
    }

    /// Settles a node's total: from now on it is a supply.
    pub(super) fn settle(&mut self, node: usize, total: f64) {
        self.top[node] = true;
        self.supply[node] = total;
    }

    /// The amount that a top has for its children of the same piece.
    pub(super) fn to_divide(&self, node: usize) -> f64 {
        (self.supply[node] - self.out[node]).max(0.0)
    }
}

struct Sets {
    members: Vec<CpuSet>,
    /// The index of each thread's set in `members`.
    of_thread: Vec<usize>,
}

/// The threads' sets of CPUs, and the classes: for each, the indices of the sets that contain it and
/// its number of CPUs. CPUs that no thread may use are in no class.
fn classes(problem: &Problem) -> (Sets, Vec<(Vec<u32>, u32)>) {
    let mut places: BTreeMap<&CpuSet, usize> = BTreeMap::new();
    let mut members = Vec::new();
    let mut of_thread = Vec::with_capacity(problem.threads.len());
    for thread in &problem.threads {
        let place = *places.entry(&thread.cpus).or_insert(members.len());
        if place == members.len() {
            members.push(thread.cpus.clone());
        }
        of_thread.push(place);
    }

    let mut sets_of_cpu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (place, set) in members.iter().enumerate() {
        for cpu in set.iter() {
            sets_of_cpu.entry(cpu.0).or_default().push(place as u32);
        }
    }
    let mut classes: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    for sets in sets_of_cpu.into_values() {
        *classes.entry(sets).or_default() += 1;
    }
    (Sets { members, of_thread }, classes.into_iter().collect())
}
