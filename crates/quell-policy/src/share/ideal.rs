//! The solver: one level of the tree after the other, one bottleneck after the other.
//!
//! # Problem
//! At a level, the totals of the parents are settled and the *items*, their children, are to
//! rise together until something stops them. Each must have at least `level x weight`; the
//! question is up to which level a flow exists. It is a question about flows with lower bounds on
//! arcs inside the network, and the feasible totals are not a polymatroid from the second
//! level on: a maximal division need not be a maximum one, so that caps on the parents would not do
//! where their totals must be met exactly. (With the threads a: CPU 0 of one group, b: CPU 0 and c:
//! CPU 1 of another, the groups deserve 1.0 each, so b gets nothing, though no thread comes before it.)
//!
//! # Approach
//! - **Limits that stop items without any flow** are computed by arithmetic: the parent's total is
//!   used up, or the item's own limit or demand is reached. Divided by only these, every parent's
//!   children have their *aims*. An item that must have `min(level x weight, aim)` gets what the
//!   ideal gives, up to the level of the first bottleneck of another kind.
//! - **A bottleneck of another kind is a cut.** If the aims can be met, they are the solution. Else
//!   the minimum cut shows nodes that more must enter than can leave; the amount that must enter
//!   depends on the level only by the items whose parents are outside. The level at which the two are
//!   equal is the next to try (Newton's method, discrete: every step is the exact root for one cut,
//!   and there are finitely many cuts), until there is no such cut: then the last is exactly full.
//! - **The items of that cut cannot rise**: they are settled at that level. The cut will be full in
//!   whatever is decided later, at deeper levels too, so the network falls into two pieces (see
//!   `pieces`) that are solved independently, with fewer nodes each.
//!
//! Levels are ratios of sums of settled totals, so results are exact up to the rounding of sums.

use super::flow::Network;
use super::pieces::{NONE, Pieces, ROOT};
use super::{Problem, ProblemError};

/// The difference between the sides of a cut from which on it counts, in CPUs: well above rounding.
/// Mistaking rounding for a bottleneck would do no harm, for the items would be settled at what they
/// can have.
const TOLERANCE: f64 = 1e-11;

/// The CPU time that each group and thread deserves, in CPUs (CPU time per time).
#[derive(Debug, Clone, PartialEq)]
pub struct Ideal {
    /// By group, in the order of [`Problem::groups`], with all threads in the group.
    pub groups: Vec<f64>,
    /// By thread, in the order of [`Problem::threads`]; 0.0 to the thread's demand.
    pub threads: Vec<f64>,
}

/// The ideal division of a host's CPU time, as the module `share` defines it.
///
/// Exact up to about 1e-9 CPUs; a problem has one ideal, and the order in which the problem lists
/// groups and threads changes the result by no more than that.
///
/// # Errors
/// The problem is invalid; the [`ProblemError`] names the first fault.
pub fn ideal(problem: &Problem) -> Result<Ideal, ProblemError> {
    let depths = problem.check()?;
    let mut solver = Solver::new(Pieces::new(problem, &depths));
    solver.settle_root();
    while let Some(piece) = solver.waiting.pop() {
        solver.advance(piece);
    }
    let totals = |nodes: &[usize]| nodes.iter().map(|&n| solver.total[n]).collect();
    Ok(Ideal {
        groups: totals(&solver.all.groups),
        threads: totals(&solver.all.threads),
    })
}

/// A part of the network that is solved independently.
struct Piece {
    number: u32,
    /// The nodes of the piece, ascending.
    nodes: Vec<usize>,
    /// The depth of the items; tops above it have no more to divide.
    depth: u32,
}

struct Solver {
    all: Pieces,
    waiting: Vec<Piece>,
    pieces: u32,
    /// The settled total of each tree node.
    total: Vec<f64>,
    /// The upper bound of each node's total, for nodes of the piece that is being solved.
    bound: Vec<f64>,
    /// The total of each item if only its siblings and its bound limited it.
    aim: Vec<f64>,
    /// The node's number in `network`.
    local: Vec<usize>,
    network: Network,
}

/// The items of a piece, and their arcs in the network.
struct Level {
    /// The tops with items.
    parents: Vec<usize>,
    items: Vec<Item>,
    /// The arcs that supply `parents` with what no item must have.
    spare: Vec<usize>,
    source: usize,
    sink: usize,
}

struct Item {
    node: usize,
    /// The index of its parent in [`Level::parents`].
    parent: usize,
    /// The arc that supplies what the item must have.
    must: usize,
    /// The arc from its parent, for what the item gets beyond that.
    more: usize,
}

/// A cut that is overfull at every level above `level`.
struct Cut {
    /// For every node of the piece, whether it is on the source's side.
    source_side: Vec<bool>,
    level: f64,
}

impl Solver {
    fn new(all: Pieces) -> Solver {
        let (nodes, tree) = (all.len(), all.tree);
        Solver {
            all,
            waiting: Vec::new(),
            pieces: 1,
            total: vec![0.0; tree],
            bound: vec![0.0; nodes],
            aim: vec![0.0; tree],
            local: vec![NONE; nodes],
            network: Network::default(),
        }
    }

    /// The root's total is the most that all threads could use together.
    fn settle_root(&mut self) {
        let piece = Piece {
            number: 0,
            nodes: (0..self.all.len()).collect(),
            depth: 0,
        };
        self.bound_nodes(&piece);
        self.all.settle(ROOT, self.bound[ROOT]);
        let level = self.build(&piece);
        self.network.saturate(level.source, level.sink);
        let source_side = self.source_side(&piece);
        let most = self.leaving(&piece, &source_side);
        if source_side[ROOT] && most < self.bound[ROOT] {
            self.settle(ROOT, most);
        } else {
            self.settle(ROOT, self.bound[ROOT]);
        }
        self.waiting.push(Piece { depth: 1, ..piece });
    }

    fn settle(&mut self, node: usize, total: f64) {
        self.all.settle(node, total);
        self.total[node] = total;
    }

    /// Settles a level of a piece, or splits the piece at the level's next bottleneck.
    fn advance(&mut self, mut piece: Piece) {
        let all = &self.all;
        let inner = |n: &&usize| **n < all.tree && !all.top[**n];
        let Some(&first) = piece.nodes.iter().find(inner) else {
            return;
        };
        // Tops above their children's level have no more to divide, except among threads.
        piece.depth = all.depth[first];
        let spent = |n: usize| {
            n < all.tree && all.top[n] && all.set[n] == NONE && all.depth[n] + 1 < piece.depth
        };
        piece.nodes.retain(|&n| !spent(n));

        self.bound_nodes(&piece);
        let level = self.build(&piece);
        self.set_aims(&level);
        match self.bottleneck(&piece, &level) {
            None => {
                for item in &level.items {
                    self.settle(item.node, self.aim[item.node]);
                }
                self.waiting.push(piece);
            }
            Some(cut) => self.split(piece, &level, &cut),
        }
    }

    /// Finds an upper bound of each node of the piece, by simple sums.
    fn bound_nodes(&mut self, piece: &Piece) {
        let (all, bound) = (&self.all, &mut self.bound);
        for &node in piece.nodes.iter().rev() {
            let here = |n: &&usize| all.piece[**n] == piece.number;
            let sum = |nodes: &[usize], bound: &[f64]| -> f64 {
                nodes.iter().filter(here).map(|&n| bound[n]).sum()
            };
            bound[node] = if node >= all.tree {
                all.out[node] + sum(&all.classes[node], bound)
            } else {
                let below = match all.set[node] {
                    NONE => sum(&all.children[node], bound),
                    set => sum(&[set], bound),
                };
                all.most[node].min(all.out[node] + below)
            };
        }
    }

    /// Builds the piece as a network from a source, which supplies the tops, to a sink.
    fn build(&mut self, piece: &Piece) -> Level {
        let (all, network) = (&self.all, &mut self.network);
        let (source, sink) = (piece.nodes.len(), piece.nodes.len() + 1);
        let mut level = Level {
            parents: Vec::new(),
            items: Vec::new(),
            spare: Vec::new(),
            source,
            sink,
        };
        network.reset(sink + 1);
        for (local, &node) in piece.nodes.iter().enumerate() {
            self.local[node] = local;
        }
        for (local, &node) in piece.nodes.iter().enumerate() {
            if all.out[node] > 0.0 {
                network.arc(local, sink, all.out[node]);
            }
            let here = |n: &&usize| all.piece[**n] == piece.number;
            for &class in all.classes[node].iter().filter(here) {
                network.arc(local, self.local[class], f64::INFINITY);
            }
            if node >= all.tree {
                continue;
            }
            if all.set[node] != NONE && all.piece[all.set[node]] == piece.number {
                network.arc(local, self.local[all.set[node]], f64::INFINITY);
            }
            if all.top[node] {
                let supplied = network.arc(source, local, all.supply[node]);
                if all.set[node] == NONE && all.depth[node] + 1 == piece.depth {
                    level.parents.push(node);
                    level.spare.push(supplied);
                }
                continue;
            }
            let parent = self.local[all.parent[node]];
            let more = network.arc(parent, local, all.most[node]);
            if all.depth[node] == piece.depth {
                level.items.push(Item {
                    node,
                    parent: level.parents.partition_point(|&p| p < all.parent[node]),
                    must: network.arc(source, local, 0.0),
                    more,
                });
            }
        }
        level
    }

    /// Divides each parent's total among its items by weight and bound.
    fn set_aims(&mut self, level: &Level) {
        let mut items: Vec<Vec<usize>> = vec![Vec::new(); level.parents.len()];
        for item in &level.items {
            items[item.parent].push(item.node);
        }
        for (&parent, items) in level.parents.iter().zip(&items) {
            let wants = items
                .iter()
                .map(|&n| (self.all.weight[n], self.bound[n]))
                .collect();
            let reached = fill(self.all.to_divide(parent), wants);
            for &n in items {
                self.aim[n] = (reached * self.all.weight[n]).min(self.bound[n]);
            }
        }
    }

    /// The cut that stops the items first; `None`: all items reach their aims.
    fn bottleneck(&mut self, piece: &Piece, level: &Level) -> Option<Cut> {
        let mut found: Option<Cut> = None;
        loop {
            let reached = found.as_ref().map_or(f64::INFINITY, |cut| cut.level);
            self.demand(level, reached);
            self.network.saturate(level.source, level.sink);
            let source_side = self.source_side(piece);
            let on_side = |node: usize| source_side[self.local[node]];

            let settled: f64 = piece
                .nodes
                .iter()
                .filter(|&&n| n < self.all.tree && self.all.top[n] && on_side(n))
                .map(|&n| self.all.supply[n])
                .sum();
            let room = (self.leaving(piece, &source_side) - settled).max(0.0);
            let stopped = |item: &&Item| stops(item, level, on_side);
            let entering: f64 = (level.items.iter().filter(stopped))
                .map(|item| must(&self.all, &self.aim, item, reached))
                .sum();
            if entering <= room + TOLERANCE {
                return found;
            }
            let wants = (level.items.iter().filter(stopped))
                .map(|item| (self.all.weight[item.node], self.aim[item.node]))
                .collect();
            let lower = fill(room, wants);
            if lower >= reached {
                return found; // rounding: the level is as low as the cut asks for
            }
            found = Some(Cut {
                source_side,
                level: lower,
            });
        }
    }

    /// Makes the network ask for what items must have at a level, no higher than the one before. The flow
    /// stays: what an item no longer must have is added to its parent's spare supply.
    fn demand(&mut self, level: &Level, reached: f64) {
        let (all, network) = (&self.all, &mut self.network);
        let mut spare: Vec<f64> = level.parents.iter().map(|&p| all.supply[p]).collect();
        for item in &level.items {
            let must = must(all, &self.aim, item, reached);
            spare[item.parent] -= must;
            let excess = network.flow(item.must) - must;
            if excess > 0.0 {
                network.add_flow(item.must, -excess);
                network.add_flow(item.more, excess);
                network.add_flow(level.spare[item.parent], excess);
            }
            network.set_capacity(item.must, must);
            network.set_capacity(item.more, all.most[item.node] - must);
        }
        for (&arc, &spare) in level.spare.iter().zip(&spare) {
            network.set_capacity(arc, spare);
        }
    }

    fn source_side(&self, piece: &Piece) -> Vec<bool> {
        (0..piece.nodes.len())
            .map(|local| self.network.on_source_side(local))
            .collect()
    }

    /// The most that can leave the source's side: out of the network or to the other side.
    fn leaving(&self, piece: &Piece, source_side: &[bool]) -> f64 {
        let all = &self.all;
        let mut sum = 0.0;
        for (&node, &side) in piece.nodes.iter().zip(source_side) {
            if side {
                sum += all.out[node];
            } else if node < all.tree && !all.top[node] && source_side[self.local[all.parent[node]]]
            {
                sum += all.most[node];
            }
        }
        sum
    }

    /// Settles the items that the cut stops and parts the piece in two along it.
    fn split(&mut self, piece: Piece, level: &Level, cut: &Cut) {
        let side = |node: usize, local: &[usize]| cut.source_side[local[node]];
        for item in &level.items {
            if stops(item, level, |n| side(n, &self.local)) {
                let total = must(&self.all, &self.aim, item, cut.level);
                self.settle(item.node, total);
                self.all.supply[self.all.parent[item.node]] -= total;
            }
        }
        let (near, far): (Vec<usize>, Vec<usize>) =
            (piece.nodes.iter()).partition(|&&n| side(n, &self.local));
        let tree = self.all.tree;
        for &node in far.iter().filter(|&&n| n < tree) {
            let parent = self.all.parent[node];
            if !self.all.top[node] && side(parent, &self.local) {
                let most = self.all.most[node];
                self.settle(node, most);
                self.all.out[parent] += most;
            }
        }
        for &node in &far {
            self.all.piece[node] = self.pieces;
        }
        for (number, nodes) in [(piece.number, near), (self.pieces, far)] {
            self.waiting.push(Piece {
                number,
                nodes,
                depth: piece.depth,
            });
        }
        self.pieces += 1;
    }
}

/// What an item must have at a level.
fn must(all: &Pieces, aim: &[f64], item: &Item, level: f64) -> f64 {
    (level * all.weight[item.node]).min(aim[item.node])
}

/// Whether a cut stops an item: it is on the source's side and its parent is not.
fn stops(item: &Item, level: &Level, on_side: impl Fn(usize) -> bool) -> bool {
    on_side(item.node) && !on_side(level.parents[item.parent])
}

/// The level at which items of `(weight, most)` use up `amount` when each has
/// `min(level x weight, most)`; infinite if all reach `most` before.
fn fill(amount: f64, mut wants: Vec<(f64, f64)>) -> f64 {
    // Items in the order in which they fill up; once one does not fill up, none after it does.
    wants.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
    let mut weight_left: f64 = wants.iter().map(|&(weight, _)| weight).sum();
    let mut left = amount;
    for (weight, most) in wants {
        let level = left.max(0.0) / weight_left;
        if level * weight < most {
            return level;
        }
        left -= most;
        weight_left -= weight;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filling_stops_where_the_amount_is_used_up() {
        // 1 by 1:1:2: 0.25 a weight; the first is full at 0.1, so 0.9 go 1:2, 0.3 a weight.
        let level = fill(1.0, vec![(2.0, 1.0), (1.0, 0.1), (1.0, 1.0)]);
        assert!((level - 0.3).abs() < 1e-15, "{level}");
        assert_eq!(fill(1.0, vec![(1.0, 0.5), (3.0, 0.25)]), f64::INFINITY);
        assert_eq!(fill(0.0, vec![(1.0, 0.5)]), 0.0);
        assert_eq!(fill(1.0, Vec::new()), f64::INFINITY);
    }
}
