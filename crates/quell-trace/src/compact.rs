//! Switches and wakings in Perfetto's compact form: the columns of a bundle.
//!
//! Each time is the difference to the one before it, the first of a bundle to 0. A switch tells the next
//! thread and the state in which the previous one left, not the identity of the previous one: it is the
//! thread that the CPU switched to before.

use crate::event::State;
use crate::proto::CompactSched;
use prost::bytes::Bytes;
use quell_model::Tid;

/// One event of the compact form.
#[derive(Debug)]
pub struct Compact {
    pub at_ns: u64,
    /// The thread that is switched to, or that is woken.
    pub thread: Tid,
    pub name: Bytes,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Waking { last_cpu: u32, flags: u32 },
    Switch { prev_state: State, priority: i32 },
}

/// All events of a bundle in the order of their times, wakings before switches.
///
/// # Errors
/// The call fails if the columns of one kind differ in length or a name's index is out of range; the text
/// says which.
pub fn events(compact: CompactSched) -> Result<Vec<Compact>, String> {
    let CompactSched {
        intern_table: names,
        switch_timestamp,
        switch_prev_state,
        switch_next_pid,
        switch_next_prio,
        switch_next_comm_index,
        waking_timestamp,
        waking_pid,
        waking_target_cpu,
        waking_comm_index,
        mut waking_common_flags,
    } = compact;
    // Older recorders do not write these flags.
    if waking_common_flags.is_empty() {
        waking_common_flags.resize(waking_timestamp.len(), 0);
    }
    let (switches, wakings) = (switch_timestamp.len(), waking_timestamp.len());
    let right = switch_prev_state.len() == switches
        && switch_next_pid.len() == switches
        && switch_next_prio.len() == switches
        && switch_next_comm_index.len() == switches
        && waking_pid.len() == wakings
        && waking_target_cpu.len() == wakings
        && waking_comm_index.len() == wakings
        && waking_common_flags.len() == wakings;
    if !right {
        return Err("compact events whose columns are not of one length".to_string());
    }
    let name = |index: u32| match names.get(index as usize) {
        Some(name) => Ok(name.clone()),
        None => Err(format!(
            "a compact event calls a thread by the {index}th of {} names",
            names.len()
        )),
    };
    let mut events = Vec::with_capacity(switches + wakings);
    let mut at_ns = 0_u64;
    for (n, since) in waking_timestamp.into_iter().enumerate() {
        at_ns = at_ns.wrapping_add(since);
        events.push(Compact {
            at_ns,
            thread: Tid(waking_pid[n] as u32),
            name: name(waking_comm_index[n])?,
            what: What::Waking {
                last_cpu: waking_target_cpu[n] as u32,
                flags: waking_common_flags[n],
            },
        });
    }
    at_ns = 0;
    for (n, since) in switch_timestamp.into_iter().enumerate() {
        at_ns = at_ns.wrapping_add(since);
        events.push(Compact {
            at_ns,
            thread: Tid(switch_next_pid[n] as u32),
            name: name(switch_next_comm_index[n])?,
            what: What::Switch {
                prev_state: State(switch_prev_state[n] as u16),
                priority: switch_next_prio[n],
            },
        });
    }
    events.sort_by_key(|event| event.at_ns);
    Ok(events)
}
