//! Scenarios from rt-app's JSON files.
//!
//! Problem: rt-app describes threads by their events; so do thread programs, with other words and nesting.
//! How: the file is read with its keys in their order, repeated ones too, since that is the order of the
//! events ([`json`]), and checked ([`read`]); then each event becomes a step, and each task a thread with its
//! policy, nice value, slice and CPUs. Limits: an event that would change the load if it were left out is
//! refused, with its line; what scenarios do not have and the load may do without becomes the scenario's
//! caveat, which stands over its results. docs/reference/rt-app.md has the table of what becomes what.

mod json;
mod read;
#[cfg(test)]
mod tests;

use anyhow::{Context, anyhow};
use quell_scenario::Scenario;
use read::{Act, Event, File, Phase, Place, Scheduling, Task};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A scenario with the load of an rt-app file.
#[derive(Debug)]
pub struct Imported {
    /// The scenario as TOML, checked.
    pub toml: String,
    /// What the scenario leaves out that may change results, in one sentence; it stands in the scenario, too.
    pub caveat: Option<String>,
    /// Other things that the user should know, in sentences.
    pub notes: Vec<String>,
}

/// Translates the text of an rt-app file.
///
/// # Errors
/// Where the text is no rt-app file, no task has an instance, a task does what scenarios cannot describe, or
/// the scenario is not valid.
pub fn import(text: &str) -> anyhow::Result<Imported> {
    let file = File::read(text)?;
    let mut importer = Importer::new(&file)?;
    let mut tenants: BTreeMap<Home, String> = BTreeMap::new();
    for task in &file.tasks {
        if task.instances == 0 {
            let note = format!("task `{}` has `instance` 0, so it is left out", task.name);
            importer.notes.push(note);
            continue;
        }
        let thread = importer.thread(task)?;
        *tenants.entry(Home::of(task)).or_default() += &thread;
    }
    if tenants.is_empty() {
        return Err(anyhow!("all its tasks have `instance` 0"));
    }
    if let Some(line) = file.inherits.filter(|_| importer.locks) {
        importer.lose("priority inheritance", format!("`pi_enabled`, line {line}"));
    }
    if file.seconds.is_none() {
        let note = "rt-app goes on until it is stopped or all its threads have ended; `seconds` is 10 here";
        importer.notes.push(note.to_string());
    }
    for key in &file.unknown {
        let note = format!("{key} is no key of rt-app's either, and is left out");
        importer.notes.push(note);
    }
    let caveat = importer.caveat();
    let named = file.tasks.iter().filter_map(|task| task.cpus.as_ref());
    let highest = named
        .flat_map(|cpus| cpus.iter())
        .map(|cpu| cpu.0 + 1)
        .max();
    let mut toml = format!(
        "name = \"rt-app\"\nseconds = {:?}\n",
        file.seconds.unwrap_or(10.0)
    );
    toml += "# It counts from its first moment, as rt-app does.\nwarmup_seconds = 0.0\n";
    if let Some(caveat) = &caveat {
        toml += &format!("caveat = {}\n", quoted(caveat));
    }
    toml += &format!(
        "\n# rt-app does not say how many; for the simulator.\n[host]\ncpus = {}\n",
        highest.unwrap_or(0).max(4)
    );
    toml += &groups(&file)?;
    for (home, threads) in tenants {
        toml += &home.table();
        toml += &threads;
    }
    let scenario = Scenario::parse(Path::new("rt-app"), &toml);
    scenario.context("its tasks make no scenario that Quell runs")?;
    Ok(Imported {
        toml,
        caveat,
        notes: importer.notes,
    })
}

/// What decides the tenant that a task's threads belong to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Home {
    /// The task group.
    group: Option<String>,
    /// With SCHED_DEADLINE: the task's name, how many threads it has, and what is promised to each: budget
    /// and period in µs.
    promised: Option<(String, u32, u64, u64)>,
}

impl Home {
    fn of(task: &Task) -> Home {
        let promised = match task.scheduling {
            Scheduling::Deadline {
                runtime_us,
                period_us,
                ..
            } => Some((
                task.name.clone(),
                task.instances,
                runtime_us as u64,
                period_us as u64,
            )),
            _ => None,
        };
        Home {
            group: task.group.clone(),
            promised,
        }
    }

    fn table(&self) -> String {
        let mut table = "\n[[tenant]]\n".to_string();
        table += &match (&self.group, &self.promised) {
            (_, Some((task, ..))) => format!("name = \"deadline.{}\"\n", sound(task, 50)),
            (Some(group), None) => {
                let group = group_name(group);
                format!("name = \"rt-app.{group}\"\nwithin = \"{group}\"\n")
            }
            (None, None) => "name = \"rt-app\"\n".to_string(),
        };
        table += "class = \"batch\"\n";
        if let Some((_, threads, budget_us, period_us)) = &self.promised {
            let (budget, period) = (*budget_us as f64 / 1e3, *period_us as f64 / 1e3);
            table += &format!(
                "criticality = \"high\"\nvcpus = {threads}\nbudget_ms = {budget:?}\npessimistic_budget_ms = {budget:?}\nperiod_ms = {period:?}\n"
            );
        }
        table
    }
}

/// The tables of task groups: `/a/b` makes a group `a`, and `a.b` within it.
fn groups(file: &File) -> anyhow::Result<String> {
    let mut paths = BTreeSet::new();
    for task in &file.tasks {
        let Some(group) = task.group.as_deref().filter(|_| task.instances > 0) else {
            continue;
        };
        for (at, _) in group.match_indices('/').skip(1) {
            paths.insert(&group[..at]);
            if let Some(other) = file
                .tasks
                .iter()
                .find(|it| it.group.as_deref() == Some(&group[..at]))
            {
                let message = format!(
                    "is `{group}`, in the group of task `{}`; a cgroup (v2) has either threads or groups in it",
                    other.name
                );
                return Err(task.place.fault(task.line, "taskgroup", message));
            }
        }
        paths.insert(group);
    }
    let table = |path: &&str| {
        let mut table = format!("\n[[group]]\nname = \"{}\"\n", group_name(path));
        if let Some((parent, _)) = path
            .rsplit_once('/')
            .filter(|(parent, _)| !parent.is_empty())
        {
            table += &format!("within = \"{}\"\n", group_name(parent));
        }
        table
    };
    Ok(paths.iter().map(table).collect())
}

fn group_name(path: &str) -> String {
    sound(&path[1..], 50)
}

/// A name of at most `longest` characters, with only the characters that names of scenarios may have.
fn sound(name: &str, longest: usize) -> String {
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let letters = name.chars().map(|c| match c {
        '/' => '.',
        c if sound(c) => c,
        _ => '_',
    });
    letters.take(longest).collect()
}

/// What threads wait for each other with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Lock,
    Event,
    Semaphore,
    Barrier,
    Timer,
}

/// The threads that use one lock, event, semaphore, barrier or timer.
#[derive(Default)]
struct Users {
    /// The tenants of these threads.
    homes: Vec<Home>,
    /// The number of these threads.
    threads: u32,
    /// Whether a timer of this name is absolute.
    absolute: bool,
}

struct Importer {
    users: BTreeMap<(Kind, String), Users>,
    /// Events that some thread signals, broadcasts or resumes.
    signalled: BTreeSet<String>,
    notes: Vec<String>,
    /// What is lost, and the places where.
    lost: BTreeMap<&'static str, Vec<String>>,
    names: BTreeSet<String>,
    locks: bool,
}

/// The steps so far, outside of locks and inside each lock that is held.
struct Steps(Vec<(String, Vec<String>)>);

impl Steps {
    fn push(&mut self, step: String) {
        if let Some((_, steps)) = self.0.last_mut() {
            steps.push(step);
        }
    }

    /// Ends the innermost lock's program. A lock under which nothing was done is left out.
    fn unlock(&mut self) {
        if let Some((lock, steps)) = self.0.pop() {
            if !steps.is_empty() {
                let (name, steps) = (quoted(&lock), steps.join(", "));
                self.push(format!(
                    "{{ lock = {{ name = {name}, program = [{steps}] }} }}"
                ));
            }
        }
    }

    /// The locks that are held.
    fn held(&self) -> Vec<&str> {
        self.0[1..].iter().map(|(lock, _)| lock.as_str()).collect()
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_string()).to_string()
}

fn step(word: &str, name: &str) -> String {
    format!("{{ {word} = {} }}", quoted(name))
}

fn repeat(times: u32, steps: &str) -> String {
    format!("{{ repeat = {{ times = {times}, program = [{steps}] }} }}")
}

impl Importer {
    /// Finds out which tasks use which locks, events, semaphores, barriers and timers.
    fn new(file: &File) -> anyhow::Result<Importer> {
        let mut it = Importer {
            users: BTreeMap::new(),
            signalled: BTreeSet::new(),
            notes: Vec::new(),
            lost: BTreeMap::new(),
            names: BTreeSet::new(),
            locks: false,
        };
        let tasks = || file.tasks.iter().filter(|task| task.instances > 0);
        let mut posted = BTreeSet::new();
        for (_, event) in tasks().flat_map(events) {
            match &event.act {
                Act::Signal(name)
                | Act::Broadcast(name)
                | Act::Resume(name)
                | Act::Sync(name, _) => {
                    it.signalled.insert(name.clone());
                }
                Act::SemPost(name) => _ = posted.insert(name),
                _ => {}
            }
        }
        let mut renamed = BTreeSet::new();
        for task in tasks() {
            let mut own = BTreeSet::new();
            for (phase, event) in events(task) {
                it.note_uses(task, &event.act, &posted, &mut own)
                    .map_err(|message| phase.place.fault(event.line, &event.key, message))?;
                if let Act::Suspend(named) = &event.act {
                    let name = suspended_on(task, named.as_deref(), &it.signalled);
                    if name != task.name {
                        renamed.insert((task.name.as_str(), name));
                    }
                }
            }
        }
        for (task, name) in renamed {
            it.notes.push(format!(
                "task `{task}` waits to be resumed as `{name}`: since 2025 rt-app does not look at what `suspend` names any \
                 more, but nothing resumes `{task}`"
            ));
        }
        Ok(it)
    }

    /// Notes what an event of a task uses. `posted`: the semaphores that some thread posts to; `own`: what
    /// the task is known to use. An error says what is wrong with the event.
    fn note_uses(
        &mut self,
        task: &Task,
        act: &Act,
        posted: &BTreeSet<&String>,
        own: &mut BTreeSet<(Kind, String)>,
    ) -> Result<(), String> {
        let unheard = |how: &str, name: &str| format!("waits for ever: nothing {how} `{name}`");
        match act {
            Act::Lock(name) | Act::Unlock(name) => {
                _ = self.note_use(task, Kind::Lock, name, own)?
            }
            Act::Signal(name) | Act::Broadcast(name) | Act::Resume(name) => {
                self.note_use(task, Kind::Event, name, own)?;
            }
            Act::Wait(name, lock) | Act::Sync(name, lock) => {
                self.note_use(task, Kind::Event, name, own)?;
                self.note_use(task, Kind::Lock, lock, own)?;
                if !self.signalled.contains(name) {
                    return Err(unheard("signals", name));
                }
            }
            Act::Suspend(named) => {
                let name = suspended_on(task, named.as_deref(), &self.signalled);
                self.note_use(task, Kind::Event, name, own)?;
                if !self.signalled.contains(name) {
                    return Err(unheard("resumes", name));
                }
            }
            Act::SemPost(name) => _ = self.note_use(task, Kind::Semaphore, name, own)?,
            Act::SemWait(name) => {
                self.note_use(task, Kind::Semaphore, name, own)?;
                if !posted.contains(name) {
                    return Err(unheard("posts to", name));
                }
            }
            Act::Barrier(name) => {
                let new = self.note_use(task, Kind::Barrier, name, own)?;
                if !new {
                    return Err(format!(
                        "comes to `{name}` twice in this task; each name is one point, to which all its users come \
                         (rt-app counts more than there are, and waits for ever)"
                    ));
                }
            }
            Act::Timer { name, absolute, .. } if !name.starts_with("unique") => {
                self.note_use(task, Kind::Timer, name, own)?;
                let users = self.users.entry((Kind::Timer, name.clone())).or_default();
                users.absolute |= absolute;
                if users.threads > 1 {
                    return Err(format!(
                        "is the timer `{name}` of several threads, of which each moves it on for all; with \
                         \"ref\": \"unique\" each has its own"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes that a task uses the lock, event, semaphore, barrier or timer of this name. Returns whether that
    /// is the task's first use of it.
    fn note_use(
        &mut self,
        task: &Task,
        kind: Kind,
        name: &str,
        own: &mut BTreeSet<(Kind, String)>,
    ) -> Result<bool, String> {
        let users = self.users.entry((kind, name.to_string())).or_default();
        let (home, new) = (Home::of(task), own.insert((kind, name.to_string())));
        if users.homes.iter().any(|other| *other != home) && kind != Kind::Timer {
            return Err(format!(
                "shares `{name}` with a task of another task group or with SCHED_DEADLINE; that is another \
                 tenant here, and tenants share nothing"
            ));
        }
        users.homes.push(home);
        if new {
            users.threads += task.instances;
        }
        Ok(new)
    }

    fn users(&self, kind: Kind, name: &str) -> Option<&Users> {
        self.users.get(&(kind, name.to_string()))
    }

    /// Records what the scenario does not have.
    fn lose(&mut self, what: &'static str, place: String) {
        let places = self.lost.entry(what).or_default();
        if !places.contains(&place) {
            places.push(place);
        }
    }

    fn caveat(&self) -> Option<String> {
        if self.lost.is_empty() {
            return None;
        }
        let each = self.lost.iter().map(|(what, places)| {
            let more = match places.len() {
                0..=2 => String::new(),
                more => format!(" and {} more", more - 2),
            };
            let shown: Vec<&str> = places.iter().take(2).map(String::as_str).collect();
            format!("{what} ({}{more})", shown.join("; "))
        });
        let each: Vec<String> = each.collect();
        Some(format!(
            "This is not all of the rt-app file: the scenario leaves out {}.",
            each.join(", ")
        ))
    }

    /// The thread table of a task.
    fn thread(&mut self, task: &Task) -> anyhow::Result<String> {
        let mut program = Vec::new();
        let mut ends = true;
        for phase in &task.phases {
            if !ends {
                let note = format!(
                    "task `{}` never comes to the phases behind one without end; they are left out",
                    task.name
                );
                self.notes.push(note);
                break;
            }
            let steps = self.steps(task, phase)?;
            if steps.is_empty() {
                continue;
            }
            match phase.turns {
                Some(1) => program.extend(steps),
                Some(turns) => program.push(repeat(turns, &steps.join(", "))),
                None if program.is_empty() => {
                    program.extend(steps);
                    ends = false;
                }
                None => {
                    // Longer than any scenario.
                    program.push(repeat(1_000_000, &repeat(1_000_000, &steps.join(", "))));
                    ends = false;
                }
            }
        }
        if program.is_empty() {
            let message = "has no event that a scenario has a step for";
            return Err(task.place.fault(task.line, &task.name, message));
        }
        let longest = if task.instances > 1 { 10 } else { 15 };
        let name = self.thread_name(&task.name, longest);
        let mut table = format!("\n[[tenant.thread]]\nname = {}\n", quoted(&name));
        table += &format!("count = {}\n", task.instances);
        if let Some(cpus) = &task.cpus {
            table += &format!("cpus = \"{cpus}\"\n");
        }
        table += &self.scheduling(task);
        if task.delay_us > 0.0 {
            table += &format!("delay_us = {:?}\n", task.delay_us);
        }
        if let Some(rounds) = task.rounds.filter(|_| ends) {
            table += &format!("rounds = {rounds}\n");
        }
        table += &format!("program = [\n    {},\n]\n", program.join(",\n    "));
        Ok(table)
    }

    fn scheduling(&mut self, task: &Task) -> String {
        let weighs = |policy: &str, nice: i32, slice_us: Option<f64>| {
            let mut keys = policy.to_string();
            if nice != 0 {
                keys += &format!("nice = {nice}\n");
            }
            if let Some(us) = slice_us {
                keys += &format!("slice_us = {us:?}\n");
            }
            keys
        };
        match &task.scheduling {
            Scheduling::Other { nice, slice_us } => weighs("", *nice, *slice_us),
            Scheduling::Batch { nice, slice_us } => {
                weighs("policy = \"batch\"\n", *nice, *slice_us)
            }
            Scheduling::Idle => "policy = \"idle\"\n".to_string(),
            Scheduling::Realtime { policy, priority } => {
                format!("policy = \"{policy}\"\npriority = {priority}\n")
            }
            Scheduling::Deadline {
                period_us,
                deadline_us,
                ..
            } => {
                let place = format!("task `{}`, line {}", task.name, task.line);
                if deadline_us < period_us {
                    self.lose("deadlines before the end of their periods", place.clone());
                }
                let what = "SCHED_DEADLINE but for a promise of the same budget and period, which only sides with criticality keep";
                self.lose(what, place);
                String::new()
            }
        }
    }

    /// A name that threads can have and no other thread has.
    fn thread_name(&mut self, name: &str, longest: usize) -> String {
        let mut thread = sound(name, longest);
        let mut number = 0;
        while thread.is_empty() || !self.names.insert(thread.clone()) {
            number += 1;
            thread = format!("t{number}");
        }
        if thread != name {
            let note = format!("task `{}` is thread `{thread}` here", name.escape_debug());
            self.notes.push(note);
        }
        thread
    }

    /// The steps of a phase.
    fn steps(&mut self, task: &Task, phase: &Phase) -> anyhow::Result<Vec<String>> {
        let mut steps = Steps(vec![(String::new(), Vec::new())]);
        for event in &phase.events {
            self.step(task, &phase.place, event, &mut steps)?;
        }
        if let Some(lock) = steps.held().last() {
            let line = phase.events.last().map_or(task.line, |it| it.line);
            let message =
                "is still locked at the end; a lock is given back in the phase that took it";
            return Err(phase.place.fault(line, lock, message));
        }
        Ok(steps.0.pop().map(|(_, steps)| steps).unwrap_or_default())
    }

    fn step(
        &mut self,
        task: &Task,
        place: &Place,
        event: &Event,
        steps: &mut Steps,
    ) -> anyhow::Result<()> {
        let fault = |message: String| Err(place.fault(event.line, &event.key, message));
        match &event.act {
            // An event of no length takes no step.
            Act::Run(us) if *us > 0.0 => steps.push(format!("{{ run_us = {us:?} }}")),
            Act::Sleep(us) if *us > 0.0 => steps.push(format!("{{ sleep_us = {us:?} }}")),
            Act::Run(_) | Act::Sleep(_) => {}
            // rt-app does not sleep with a period of 0 either.
            Act::Timer { period_us, .. } if *period_us == 0.0 => {}
            Act::Timer {
                name,
                period_us,
                absolute,
            } => {
                let others = self.users(Kind::Timer, name).is_some_and(|it| it.absolute);
                let unique = name.starts_with("unique") && unique_is_absolute(task, name);
                let missed = match *absolute || others || unique {
                    true => ", missed = \"catch_up\"",
                    false => "",
                };
                let name = quoted(name);
                steps.push(format!(
                    "{{ timer = {{ period_us = {period_us:?}, name = {name}{missed} }} }}"
                ));
            }
            Act::Lock(lock) => {
                self.locks = true;
                steps.0.push((lock.clone(), Vec::new()));
            }
            Act::Unlock(lock) => match steps.held().last() {
                Some(last) if last == lock => steps.unlock(),
                Some(last) => {
                    return fault(format!(
                        "gives back `{lock}` before `{last}`, which was taken after it"
                    ));
                }
                None => {
                    return fault(format!(
                        "gives back `{lock}`, which this phase has not taken"
                    ));
                }
            },
            Act::Wait(name, lock) | Act::Sync(name, lock) => {
                let signals = matches!(event.act, Act::Sync(..)).then(|| step("signal", name));
                let waits = signals.into_iter().chain([step("wait_next", name)]);
                match steps.held()[..] {
                    // rt-app's tutorial says that `sync` takes the lock around its wait.
                    [] => {
                        steps.0.push((lock.clone(), waits.collect()));
                        steps.unlock();
                    }
                    [held] if held == lock => waits.for_each(|it| steps.push(it)),
                    [held] => {
                        return fault(format!(
                            "waits with `{lock}` as its mutex, but holds `{held}`"
                        ));
                    }
                    _ => {
                        return fault(
                            "waits with two locks held, and would give back only one".to_string(),
                        );
                    }
                }
            }
            Act::Signal(name) => steps.push(step("signal", name)),
            Act::Broadcast(name) | Act::Resume(name) => steps.push(step("broadcast", name)),
            Act::Suspend(named) => {
                if let Some(held) = steps.held().last() {
                    return fault(format!("waits with lock `{held}` held"));
                }
                let name = suspended_on(task, named.as_deref(), &self.signalled);
                steps.push(step("wait_next", name));
            }
            Act::Barrier(name) => {
                // A barrier for one thread waits for no other thread.
                if self
                    .users(Kind::Barrier, name)
                    .is_some_and(|it| it.threads > 1)
                {
                    if let Some(held) = steps.held().last() {
                        return fault(format!("waits with lock `{held}` held"));
                    }
                    steps.push(step("barrier", name));
                }
            }
            Act::SemPost(name) => steps.push(step("release", name)),
            Act::SemWait(name) => {
                if let Some(held) = steps.held().last() {
                    return fault(format!("waits with lock `{held}` held"));
                }
                steps.push(format!("{{ acquire = {{ name = {} }} }}", quoted(name)));
            }
            Act::Lost(what) => {
                let place = format!(
                    "`{}` of task `{}`, line {}",
                    event.key, task.name, event.line
                );
                self.lose(what, place);
            }
        }
        Ok(())
    }
}

fn events(task: &Task) -> impl Iterator<Item = (&Phase, &Event)> {
    let phases = task.phases.iter();
    phases.flat_map(|phase| phase.events.iter().map(move |event| (phase, event)))
}

/// Whether one of the task's timers of this name is absolute, which counts for all uses of the timer.
fn unique_is_absolute(task: &Task, timer: &str) -> bool {
    events(task).any(|(_, event)| match &event.act {
        Act::Timer { name, absolute, .. } => name == timer && *absolute,
        _ => false,
    })
}

/// The name that a task waits to be resumed by: its own name, which is all that rt-app looks at since 2025;
/// or, if no thread resumes that, the name that `suspend` gives, as in older versions.
fn suspended_on<'a>(
    task: &'a Task,
    named: Option<&'a str>,
    signalled: &BTreeSet<String>,
) -> &'a str {
    let named = named.filter(|it| signalled.contains(*it) && !signalled.contains(&task.name));
    named.unwrap_or(&task.name)
}
