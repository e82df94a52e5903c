//! Maximum flows and minimum cuts of small networks, with capacities that are not whole numbers.
//!
//! Dinic's algorithm: as long as the sink can be reached, find every node's distance from the source
//! and fill all shortest paths. An augmentation empties its narrowest arc to exactly zero, so all
//! that rounding can leave is a tiny rest where two sums should be equal; arcs with no more than
//! [`CRUMB`] left count as full.

/// The amount up to which a capacity counts as zero, in CPUs.
pub(super) const CRUMB: f64 = 1e-12;

const NONE: u32 = u32::MAX;

/// A network. Nodes are numbered from 0.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// Each node's latest arc.
    first: Vec<u32>,
    /// Arcs in pairs: arc `a ^ 1` is arc `a` backwards.
    arcs: Vec<Arc>,
    distance: Vec<u32>,
    /// Each node's next arc to try.
    current: Vec<u32>,
    queue: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Arc {
    to: u32,
    /// The next arc of the same node.
    next: u32,
    /// The capacity left; on the backward arc, the flow.
    left: f64,
}

impl Network {
    /// Resets the network to `nodes` nodes and no arcs.
    pub(super) fn reset(&mut self, nodes: usize) {
        self.first.clear();
        self.first.resize(nodes, NONE);
        self.arcs.clear();
    }

    /// Adds an arc of some capacity, infinity included, and returns its number.
    pub(super) fn arc(&mut self, from: usize, to: usize, capacity: f64) -> usize {
        let number = self.arcs.len();
        for (from, to, left) in [(from, to, capacity), (to, from, 0.0)] {
            let next = std::mem::replace(&mut self.first[from], self.arcs.len() as u32);
            self.arcs.push(Arc {
                to: to as u32,
                next,
                left,
            });
        }
        number
    }

    /// Sets an arc's capacity, which must be no less than its flow.
    pub(super) fn set_capacity(&mut self, arc: usize, capacity: f64) {
        self.arcs[arc].left = (capacity - self.flow(arc)).max(0.0);
    }

    /// The flow through an arc.
    pub(super) fn flow(&self, arc: usize) -> f64 {
        self.arcs[arc ^ 1].left
    }

    /// Adds to the flow through an arc. The caller must keep the flow into each node equal to the flow
    /// out of it, and all arcs' flows within their capacities.
    pub(super) fn add_flow(&mut self, arc: usize, amount: f64) {
        self.arcs[arc].left -= amount;
        self.arcs[arc ^ 1].left += amount;
    }

    /// Sends as much more as possible from `source` to `sink`. Every path between them must have
    /// a finite arc.
    pub(super) fn saturate(&mut self, source: usize, sink: usize) {
        while self.measure(source, sink) {
            self.current.clone_from(&self.first);
            self.push(source as u32, sink as u32, f64::INFINITY);
        }
    }

    /// Whether `node` can still be reached from the source: the nodes that can are the source side of a
    /// minimum cut. Valid only after [`Network::saturate`].
    pub(super) fn on_source_side(&self, node: usize) -> bool {
        self.distance[node] != NONE
    }

    /// Finds the distances from `source` over arcs that are not full, until that of `sink` is found;
    /// returns whether `sink` has one.
    fn measure(&mut self, source: usize, sink: usize) -> bool {
        self.distance.clear();
        self.distance.resize(self.first.len(), NONE);
        self.distance[source] = 0;
        self.queue.clear();
        self.queue.push(source as u32);
        let mut head = 0;
        while let Some(&node) = self.queue.get(head) {
            head += 1;
            let mut number = self.first[node as usize];
            while number != NONE {
                let arc = self.arcs[number as usize];
                if arc.left > CRUMB && self.distance[arc.to as usize] == NONE {
                    self.distance[arc.to as usize] = self.distance[node as usize] + 1;
                    if arc.to as usize == sink {
                        return true;
                    }
                    self.queue.push(arc.to);
                }
                number = arc.next;
            }
        }
        false
    }

    /// Sends up to `amount` from `node` to the sink over shortest paths; returns the amount sent.
    /// The depth of recursion is the length of a path.
    fn push(&mut self, node: u32, sink: u32, amount: f64) -> f64 {
        if node == sink {
            return amount;
        }
        let mut sent = 0.0;
        while self.current[node as usize] != NONE {
            let number = self.current[node as usize] as usize;
            let arc = self.arcs[number];
            if arc.left > CRUMB
                && self.distance[arc.to as usize] == self.distance[node as usize] + 1
            {
                let part = self.push(arc.to, sink, arc.left.min(amount - sent));
                self.arcs[number].left -= part;
                self.arcs[number ^ 1].left += part;
                sent += part;
                if amount - sent <= CRUMB {
                    return sent; // the arc may have more
                }
            }
            self.current[node as usize] = arc.next;
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_where_the_flow_is_stuck() {
        // 0 -> 1 -> 3 is narrow at its end, 0 -> 2 -> 3 at its start; 1 -> 2 is a way round.
        let mut network = Network::default();
        network.reset(4);
        network.arc(0, 1, 2.0);
        network.arc(1, 3, 0.5);
        network.arc(0, 2, 0.25);
        network.arc(2, 3, 1.0);
        let round = network.arc(1, 2, 0.5);
        network.saturate(0, 3);
        let side = |n: &Network| (0..4).map(|v| n.on_source_side(v)).collect::<Vec<_>>();
        assert_eq!(side(&network), [true, true, false, false]);
        // With a wide way round both ends are full; the earlier flow is kept.
        network.set_capacity(round, f64::INFINITY);
        network.saturate(0, 3);
        assert_eq!(side(&network), [true, true, true, false]);
    }

    #[test]
    fn a_path_taken_too_early_is_taken_back() {
        // Filling 0 -> 1 -> 2 -> 3 first would block both others; 1 unit must be sent back.
        let mut network = Network::default();
        network.reset(4);
        for (from, to) in [(0, 2), (1, 3), (1, 2), (0, 1), (2, 3)] {
            network.arc(from, to, 1.0);
        }
        network.saturate(0, 3);
        assert!((1..4).all(|node| !network.on_source_side(node)));
    }
}
