//! The state of a host without one of its virtual machines, and which one to move when the host has too
//! much load (appendix B.4 says only that some should be moved).
//!
//! # Approach
//! A machine that leaves gives back its group's cores, and lacks none itself. They go to the guests and
//! pools that lack cores now; the rest is idle. The machine to move is the smallest whose leaving ends
//! all lack, since moving costs by size; where none does, the one that leaves the least lack.
//!
//! # Limits
//! A guest lacks cores for its next step (a need beyond that cannot be seen), so more may lack then. The
//! emulator pool is taken to stay as large as it is.

use quell_model::{TenantName, WhatIf};

/// A virtual machine that might leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The machine's name.
    pub name: TenantName,
    /// The number of cores of its group; 0: it is in the idle pool.
    pub cores: u32,
    /// The number of cores that the machine lacks.
    pub lacks: u32,
}

/// The host without each of the machines, the one to move first. `idle`: idle cores; `lacking`: cores that
/// lack elsewhere (for emulators, in the idle pool); `step`: CPUs of a core.
pub fn what_if(all: &[Holding], lacking: u32, idle: u32, step: u32) -> Vec<WhatIf> {
    let lack: u32 = lacking + all.iter().map(|it| it.lacks).sum::<u32>();
    let without = |it: &Holding| {
        let needed = lack - it.lacks;
        let taken = needed.min(it.cores);
        WhatIf {
            name: it.name.clone(),
            frees: it.cores * step,
            lacking: (needed - taken) * step,
            idle_cores: (idle + it.cores - taken) as usize,
        }
    };
    let mut found: Vec<WhatIf> = all.iter().map(without).collect();
    found.sort_by(|a, b| {
        let smaller = match lack {
            // No machine has to go: the one that would make the most room is first.
            0 => b.frees.cmp(&a.frees),
            _ => a.frees.cmp(&b.frees),
        };
        let order = a.lacking.cmp(&b.lacking).then(smaller);
        order.then_with(|| a.name.cmp(&b.name))
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Name, cores, cores that it lacks.
    type Row = (&'static str, u32, u32);

    fn holding((name, cores, lacks): (&str, u32, u32)) -> Holding {
        Holding {
            name: name.into(),
            cores,
            lacks,
        }
    }

    /// The result in words, as a table has it: `name frees lacking idle`.
    fn said(all: &[Row], lacking: u32, idle: u32, step: u32) -> Vec<String> {
        let all: Vec<_> = all.iter().copied().map(holding).collect();
        let found = what_if(&all, lacking, idle, step).into_iter();
        found
            .map(|it| format!("{} {} {} {}", it.name, it.frees, it.lacking, it.idle_cores))
            .collect()
    }

    #[test]
    fn cases() {
        type Case<'a> = (&'a [Row], u32, u32, u32, &'a [&'a str]);
        let cases: [Case<'_>; 8] = [
            (&[], 0, 3, 1, &[]),
            // No core lacks: the most room first; a machine without a group makes none.
            (
                &[("a", 2, 0), ("b", 4, 0), ("c", 0, 0)],
                0,
                1,
                1,
                &["b 4 0 5", "a 2 0 3", "c 0 0 1"],
            ),
            // One core lacks: the smallest machine that has one, not the largest, nor the one that lacks
            // it, which needs no less.
            (
                &[("a", 4, 1), ("b", 3, 0), ("c", 1, 0)],
                0,
                0,
                1,
                &["c 1 0 0", "b 3 0 2", "a 4 0 4"],
            ),
            // The machine that lacks a core is the smallest: without it no core lacks.
            (
                &[("a", 1, 1), ("b", 4, 0)],
                0,
                0,
                1,
                &["a 1 0 1", "b 4 0 3"],
            ),
            // Three lack, and one machine alone cannot free as many: the larger leaves the least lack.
            (
                &[("a", 1, 2), ("b", 2, 2), ("c", 1, 2)],
                0,
                0,
                1,
                &["b 2 2 0", "a 1 3 0", "c 1 3 0"],
            ),
            // The emulators lack one.
            (
                &[("a", 2, 0), ("b", 1, 0)],
                1,
                0,
                1,
                &["b 1 0 0", "a 2 0 1"],
            ),
            // Equal ones are ordered by name.
            (
                &[("b", 1, 0), ("a", 1, 0)],
                1,
                0,
                1,
                &["a 1 0 0", "b 1 0 0"],
            ),
            // Hyperthreads: two CPUs for each core.
            (
                &[("a", 2, 1), ("b", 1, 1)],
                0,
                0,
                2,
                &["b 2 0 0", "a 4 0 1"],
            ),
        ];
        for (all, lacking, idle, step, expected) in cases {
            assert_eq!(said(all, lacking, idle, step), expected, "{all:?}");
        }
    }

    proptest! {
        /// All cores have an owner or are idle, no core lacks while a freed one idles, and the first is
        /// the best.
        #[test]
        fn cores_are_not_lost(all in prop::collection::vec((0..9_u32, 0..5_u32), 0..8), lacking in 0..4_u32, idle in 0..9_u32, step in 1..3_u32) {
            let names: Vec<String> = (0..all.len()).map(|it| format!("vm-{it}")).collect();
            let all: Vec<Holding> = all.iter().zip(&names).map(|((cores, lacks), name)| holding((name.as_str(), *cores, *lacks))).collect();
            let lack = lacking + all.iter().map(|it| it.lacks).sum::<u32>();
            let found = what_if(&all, lacking, idle, step);
            prop_assert_eq!(found.len(), all.len());
            for it in &found {
                let of = all.iter().find(|holding| holding.name == it.name).unwrap();
                prop_assert_eq!(it.frees, of.cores * step);
                // Each freed core either idles or ended a lack.
                let ended = lack - of.lacks - it.lacking / step;
                prop_assert_eq!(it.idle_cores as u32, idle + of.cores - ended);
                prop_assert!(it.lacking == 0 || it.idle_cores as u32 == idle);
                prop_assert!(found[0].lacking <= it.lacking);
                prop_assert!(lack == 0 || it.lacking > found[0].lacking || found[0].frees <= it.frees);
            }
        }
    }
}
