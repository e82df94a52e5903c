//! Reads an rt-app file: tasks with their scheduling, phases and events, each checked by itself.
//!
//! Source: keys and defaults are those of rt-app's src/rt-app_parse_config.c and doc/tutorial.txt (2025).
//! rt-app knows an event by how its key begins (`run0`, `run1`), and ignores keys that it does not know.

use super::json::{Json, Value};
use anyhow::{anyhow, bail, ensure};
use quell_model::CpuSet;

/// The task and phase that a message is about.
#[derive(Debug, Clone)]
pub struct Place {
    task: String,
    phase: Option<String>,
}

impl Place {
    /// An error at a key of this place, on this line.
    pub fn fault(&self, line: usize, key: &str, message: impl AsRef<str>) -> anyhow::Error {
        let phase = self.phase.as_ref();
        let phase = phase.map_or(String::new(), |it| {
            format!(", phase `{}`", it.escape_debug())
        });
        anyhow!(
            "line {line}: task `{}`{phase}: `{}` {}",
            self.task.escape_debug(),
            key.escape_debug(),
            message.as_ref()
        )
    }

    /// The value as a whole number from `low` to `high`.
    fn number(&self, key: &str, json: &Json, low: f64, high: f64) -> anyhow::Result<f64> {
        match json.value {
            Value::Number(number) if (low..=high).contains(&number) && number.fract() == 0.0 => {
                Ok(number)
            }
            Value::Number(number) => {
                let message =
                    format!("is {number}; whole numbers from {low} to {high} can be kept");
                Err(self.fault(json.line, key, message))
            }
            _ => Err(self.fault(json.line, key, "is no number")),
        }
    }

    fn text<'a>(&self, key: &str, json: &'a Json) -> anyhow::Result<&'a str> {
        match json.text() {
            Some("") => Err(self.fault(json.line, key, "names nothing")),
            Some(text) => Ok(text),
            None => Err(self.fault(json.line, key, "is no text, which would say what it is for")),
        }
    }
}

/// A whole file.
pub struct File {
    /// `global.duration` in s; `None`: without end.
    pub seconds: Option<f64>,
    /// The line of `pi_enabled`, where that is on.
    pub inherits: Option<usize>,
    pub tasks: Vec<Task>,
    /// Keys that rt-app does not know either.
    pub unknown: Vec<String>,
}

pub struct Task {
    pub name: String,
    pub line: usize,
    pub place: Place,
    pub instances: u32,
    pub delay_us: f64,
    /// How often the phases are run; `None`: for ever.
    pub rounds: Option<u32>,
    pub scheduling: Scheduling,
    pub cpus: Option<CpuSet>,
    /// The task group, `/a/b`; `None`: the root.
    pub group: Option<String>,
    pub phases: Vec<Phase>,
}

pub struct Phase {
    pub place: Place,
    /// How often the phase is run; `None`: for ever.
    pub turns: Option<u32>,
    pub events: Vec<Event>,
}

pub struct Event {
    pub key: String,
    pub line: usize,
    pub act: Act,
}

pub enum Act {
    Run(f64),
    Sleep(f64),
    Timer {
        name: String,
        period_us: f64,
        absolute: bool,
    },
    Lock(String),
    Unlock(String),
    Wait(String, String),
    Sync(String, String),
    Signal(String),
    Broadcast(String),
    /// The event that the thread suspends on, if the file names one.
    Suspend(Option<String>),
    Resume(String),
    Barrier(String),
    SemPost(String),
    SemWait(String),
    /// A step that scenarios do not have, and what is lost with it.
    Lost(&'static str),
}

/// A scheduling policy and its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum Scheduling {
    Other {
        nice: i32,
        slice_us: Option<f64>,
    },
    Batch {
        nice: i32,
        slice_us: Option<f64>,
    },
    Idle,
    Realtime {
        policy: &'static str,
        priority: u32,
    },
    Deadline {
        runtime_us: f64,
        period_us: f64,
        deadline_us: f64,
    },
}

/// Keys that change nothing of what tasks do.
const HARMLESS: &[&str] = &[
    "calibration",
    "gnuplot",
    "ftrace",
    "lock_pages",
    "frag",
    "io_device",
    "mem_buffer_size",
    "cumulative_slack",
];

const EVENTS: &[&str] = &[
    "lock", "unlock", "wait", "signal", "broad", "sync", "sleep", "run", "timer", "suspend",
    "resume", "mem", "iorun", "yield", "barrier", "fork", "sem_post", "sem_wait",
];

const PROPERTIES: &[&str] = &[
    "phases",
    "instance",
    "loop",
    "delay",
    "cpus",
    "nodes_membind",
    "policy",
    "priority",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "period",
    "deadline",
    "util_min",
    "util_max",
    "taskgroup",
];

fn is_event(key: &str) -> bool {
    EVENTS.iter().any(|event| key.starts_with(event))
}

impl File {
    /// Reads the text of an rt-app file.
    ///
    /// # Errors
    /// Where the text is no JSON as rt-app reads it, has no tasks, or has a value that a scenario cannot
    /// keep; the message has the line.
    pub fn read(text: &str) -> anyhow::Result<File> {
        let json = Json::parse(text)?;
        ensure!(
            matches!(json.value, Value::Object(_)),
            "line {}: an rt-app file is an object with `tasks`",
            json.line
        );
        let mut file = File {
            seconds: None,
            inherits: None,
            tasks: Vec::new(),
            unknown: Vec::new(),
        };
        let mut default = "SCHED_OTHER".to_string();
        for (key, value) in json.get("global").map(Json::entries).unwrap_or_default() {
            let fault = |message: String| anyhow!("line {}: global `{key}` {message}", value.line);
            match (key.as_str(), &value.value) {
                ("duration", Value::Number(s)) if *s < 0.0 => {}
                ("duration", Value::Number(s)) if (1.0..=3600.0).contains(s) => {
                    file.seconds = Some(*s);
                }
                ("duration", Value::Number(s)) => {
                    return Err(fault(format!("is {s}; 1 to 3600 s can be kept, and -1")));
                }
                ("default_policy", Value::Text(policy)) => default.clone_from(policy),
                ("pi_enabled", Value::Bool(true)) => file.inherits = Some(value.line),
                ("pi_enabled", _) => {}
                ("duration" | "default_policy", _) => return Err(fault("cannot be that".into())),
                (key, _) if key.starts_with("log") || HARMLESS.contains(&key) => {}
                _ => file
                    .unknown
                    .push(format!("`{key}` of global, line {}", value.line)),
            }
        }
        for (key, value) in json.entries() {
            if !["tasks", "global", "resources"].contains(&key.as_str()) {
                file.unknown.push(format!("`{key}`, line {}", value.line));
            }
        }
        let Some(tasks) = json.get("tasks") else {
            bail!(
                "line {}: has no `tasks`: it is no whole rt-app file but a part of one (rt-app's merge.py puts such together)",
                json.line
            );
        };
        ensure!(
            !tasks.entries().is_empty(),
            "line {}: `tasks` has no task",
            tasks.line
        );
        for (name, value) in tasks.entries() {
            let task = Task::read(name, value, &default, &mut file.unknown)?;
            file.tasks.push(task);
        }
        Ok(file)
    }
}

impl Task {
    fn read(
        name: &str,
        json: &Json,
        default: &str,
        unknown: &mut Vec<String>,
    ) -> anyhow::Result<Task> {
        let place = Place {
            task: name.to_string(),
            phase: None,
        };
        let given = |key: &str| json.get(key);
        let number = |key: &str, low: f64, high: f64| {
            let value = given(key).map(|value| place.number(key, value, low, high));
            value.transpose()
        };
        old_grammar(json, &place)?;
        let rounds = match given("loop") {
            Some(value) => Some(turns(&place, value)?),
            None => None,
        };
        let single = [(String::new(), json.clone())];
        let phased = given("phases");
        let phases = phased.map_or(&single[..], |phases| phases.entries());
        let mut task = Task {
            name: name.to_string(),
            line: json.line,
            instances: number("instance", 0.0, 1024.0)?.unwrap_or(1.0) as u32,
            delay_us: number("delay", 0.0, 3600e6)?.unwrap_or(0.0),
            rounds: rounds.unwrap_or(None),
            scheduling: Scheduling::read(json, &place, default)?,
            cpus: cpus(json, &place)?,
            group: group(json, &place)?,
            phases: Vec::new(),
            place,
        };
        if let Some(phases) = phased {
            let line = phases.line;
            ensure!(
                !phases.entries().is_empty(),
                task.place.fault(line, "phases", "has no phase")
            );
            for (key, value) in json.entries() {
                if is_event(key) {
                    let message =
                        "stands beside `phases`, where rt-app does not do it; put it into a phase";
                    return Err(task.place.fault(value.line, key, message));
                }
            }
        }
        for (number, (name, value)) in phases.iter().enumerate() {
            let phase = task.phase(phased.map(|_| name.as_str()), value, unknown)?;
            if phased.is_some() {
                task.phase_settings(number, value, &phase.place)?;
            }
            task.phases.push(phase);
        }
        if phased.is_some() {
            for (key, value) in json.entries() {
                if let Some(first) = task.phases.first_mut() {
                    lost_property(key, value, first);
                }
                if !PROPERTIES.contains(&key.as_str()) && !is_event(key) {
                    unknown.push(format!("`{key}` of task `{name}`, line {}", value.line));
                }
            }
        }
        Ok(task)
    }

    /// Reads the events of a phase; without a name: of a task that has no phases.
    fn phase(
        &self,
        name: Option<&str>,
        json: &Json,
        unknown: &mut Vec<String>,
    ) -> anyhow::Result<Phase> {
        let place = Place {
            phase: name.map(String::from),
            ..self.place.clone()
        };
        if !matches!(json.value, Value::Object(_)) {
            let message = "is no object with events";
            let name = name.unwrap_or_default();
            return Err(self.place.fault(json.line, name, message));
        }
        let mut phase = Phase {
            turns: Some(1),
            events: Vec::new(),
            place,
        };
        if let (Some(turns_of), Some(_)) = (json.get("loop"), name) {
            phase.turns = turns(&phase.place, turns_of)?;
        }
        for (key, value) in json.entries() {
            if is_event(key) {
                let act = act(key, value, &phase.place)?;
                let (key, line) = (key.clone(), value.line);
                phase.events.push(Event { key, line, act });
            } else if !PROPERTIES.contains(&key.as_str()) {
                unknown.push(format!(
                    "`{key}` of task `{}`, line {}",
                    self.name, value.line
                ));
            }
            lost_property(key, value, &mut phase);
        }
        if !json.entries().iter().any(|(key, _)| is_event(key)) {
            let what = name.unwrap_or(&self.name);
            return Err(self.place.fault(json.line, what, "has no event"));
        }
        Ok(phase)
    }

    /// Takes over a phase's settings of scheduling and CPUs for the thread; all phases must come to equal
    /// settings.
    fn phase_settings(&mut self, number: usize, json: &Json, place: &Place) -> anyhow::Result<()> {
        let differs = |key: &str| {
            let line = json.get(key).map_or(json.line, |value| value.line);
            let message = "is not what the phases before have; a thread of a scenario has the same in all its phases";
            Err(place.fault(line, key, message))
        };
        let keys = [
            "policy",
            "priority",
            "dl-runtime",
            "dl-period",
            "dl-deadline",
        ];
        if let Some(key) = keys.into_iter().find(|key| json.get(key).is_some()) {
            let here = self.scheduling.changed(json, place)?;
            if here != self.scheduling && number > 0 {
                return differs(key);
            }
            self.scheduling = here;
        }
        if json.get("cpus").is_some() {
            let here = cpus(json, place)?;
            if here != self.cpus && number > 0 {
                return differs("cpus");
            }
            self.cpus = here;
        }
        if json
            .get("taskgroup")
            .and_then(Json::text)
            .is_some_and(|it| !it.is_empty())
        {
            let here = group(json, place)?;
            if here != self.group && number > 0 {
                return differs("taskgroup");
            }
            self.group = here;
        }
        Ok(())
    }
}

/// Refuses the grammar that rt-app had before there were events.
fn old_grammar(json: &Json, place: &Place) -> anyhow::Result<()> {
    for key in ["exec", "lock_order"] {
        if let (Some(value), false) = (json.get(key), json.get("phases").is_some()) {
            let message = "is of rt-app's old grammar (`exec`, `period`, `lock_order`), which rt-app itself does not \
                           read any more; say what the task does as events: `run`, `lock`, `timer`";
            return Err(place.fault(value.line, key, message));
        }
    }
    Ok(())
}

/// Reads a `loop`: a number of turns, or `None` for ever. rt-app ends a loop only when it reaches the number.
fn turns(place: &Place, json: &Json) -> anyhow::Result<Option<u32>> {
    match json.value {
        Value::Number(turns) if turns < 0.0 => Ok(None),
        _ => Ok(Some(place.number("loop", json, 1.0, 1e6)? as u32)),
    }
}

fn cpus(json: &Json, place: &Place) -> anyhow::Result<Option<CpuSet>> {
    let Some(value) = json.get("cpus") else {
        return Ok(None);
    };
    let Value::List(list) = &value.value else {
        return Err(place.fault(value.line, "cpus", "is no list of CPUs"));
    };
    let numbers = list.iter().map(|it| place.number("cpus", it, 0.0, 8191.0));
    let numbers: Vec<f64> = numbers.collect::<anyhow::Result<_>>()?;
    if numbers.is_empty() {
        return Err(place.fault(value.line, "cpus", "has no CPU"));
    }
    let ids = numbers.iter().map(|it| quell_model::CpuId(*it as u32));
    Ok(Some(ids.collect()))
}

fn group(json: &Json, place: &Place) -> anyhow::Result<Option<String>> {
    let Some(value) = json.get("taskgroup") else {
        return Ok(None);
    };
    match value.text() {
        Some("" | "/") => Ok(None),
        Some(path) if path.starts_with('/') => Ok(Some(path.trim_end_matches('/').to_string())),
        _ => Err(place.fault(
            value.line,
            "taskgroup",
            "must be a path that begins with `/`",
        )),
    }
}

/// Records properties that a scenario's threads do not have as lost events.
fn lost_property(key: &str, value: &Json, phase: &mut Phase) {
    let what = match key {
        "util_min" | "util_max" => "utilisation clamps",
        "nodes_membind" => "where its memory is",
        _ => return,
    };
    phase.events.push(Event {
        key: key.to_string(),
        line: value.line,
        act: Act::Lost(what),
    });
}

impl Scheduling {
    /// Reads a task's scheduling.
    fn read(json: &Json, place: &Place, default: &str) -> anyhow::Result<Scheduling> {
        let policy = json.get("policy");
        let line = policy.map_or(json.line, |it| it.line);
        let name = match policy {
            Some(policy) => place.text("policy", policy)?,
            None => default,
        };
        Scheduling::of(name, line, json, place)
    }

    fn of(policy: &str, line: usize, json: &Json, place: &Place) -> anyhow::Result<Scheduling> {
        let number = |key: &str, low: f64, high: f64| {
            let value = json.get(key).map(|it| place.number(key, it, low, high));
            value.transpose()
        };
        let runtime = number("dl-runtime", 0.0, 4e6)?.filter(|us| *us > 0.0);
        // Clamped as the kernel clamps slices.
        let slice_us = runtime.map(|us| us.clamp(100.0, 100_000.0));
        let nice =
            || Ok::<_, anyhow::Error>(number("priority", -20.0, 19.0)?.unwrap_or(0.0) as i32);
        Ok(match policy {
            "SCHED_OTHER" => Scheduling::Other {
                nice: nice()?,
                slice_us,
            },
            "SCHED_BATCH" => Scheduling::Batch {
                nice: nice()?,
                slice_us,
            },
            // rt-app sets neither nice value nor slice with this policy.
            "SCHED_IDLE" => Scheduling::Idle,
            "SCHED_FIFO" | "SCHED_RR" => Scheduling::Realtime {
                policy: if policy == "SCHED_FIFO" { "fifo" } else { "rr" },
                priority: number("priority", 1.0, 99.0)?.unwrap_or(10.0) as u32,
            },
            "SCHED_DEADLINE" => {
                let older = |new: &str, old: &str| match number(new, 0.0, 4e6)? {
                    Some(us) => Ok::<_, anyhow::Error>(Some(us)),
                    None => number(old, 0.0, 4e6),
                };
                let Some(runtime_us) = older("dl-runtime", "runtime")?.filter(|us| *us > 0.0)
                else {
                    let message = "is \"SCHED_DEADLINE\" and there is no `dl-runtime`, without which the kernel refuses it";
                    return Err(place.fault(line, "policy", message));
                };
                let period_us = older("dl-period", "period")?.unwrap_or(runtime_us);
                let deadline_us = older("dl-deadline", "deadline")?.unwrap_or(period_us);
                Scheduling::Deadline {
                    runtime_us,
                    period_us,
                    deadline_us,
                }
            }
            other => {
                let message = format!(
                    "is \"{}\", which rt-app does not know",
                    other.escape_debug()
                );
                return Err(place.fault(line, "policy", message));
            }
        })
    }

    fn policy(&self) -> &'static str {
        match self {
            Scheduling::Other { .. } => "SCHED_OTHER",
            Scheduling::Batch { .. } => "SCHED_BATCH",
            Scheduling::Idle => "SCHED_IDLE",
            Scheduling::Realtime { policy: "fifo", .. } => "SCHED_FIFO",
            Scheduling::Realtime { .. } => "SCHED_RR",
            Scheduling::Deadline { .. } => "SCHED_DEADLINE",
        }
    }

    /// The scheduling after a phase, which names only what it changes.
    fn changed(&self, json: &Json, place: &Place) -> anyhow::Result<Scheduling> {
        let policy = json.get("policy").and_then(Json::text);
        let policy = policy.unwrap_or(self.policy());
        let line = json.get("policy").map_or(json.line, |it| it.line);
        let mut new = Scheduling::of(policy, line, json, place)?;
        let keeps = json.get("priority").is_none();
        match (&mut new, self) {
            (
                Scheduling::Other { nice, .. } | Scheduling::Batch { nice, .. },
                Scheduling::Other { nice: before, .. } | Scheduling::Batch { nice: before, .. },
            ) if keeps && json.get("policy").is_none() => *nice = *before,
            (
                Scheduling::Realtime { priority, .. },
                Scheduling::Realtime {
                    priority: before, ..
                },
            ) if keeps && json.get("policy").is_none() => *priority = *before,
            _ => {}
        }
        Ok(new)
    }
}

/// Reads what an event does.
fn act(key: &str, json: &Json, place: &Place) -> anyhow::Result<Act> {
    let is = |word: &str| key.starts_with(word);
    let text = || Ok::<_, anyhow::Error>(place.text(key, json)?.to_string());
    // At most as long as the longest step of a scenario.
    let time = || place.number(key, json, 0.0, 60e6);
    if json.value == Value::Missing && !is("suspend") && !is("yield") {
        return Err(place.fault(json.line, key, "has no value"));
    }
    let pair = |key: &str| {
        let Value::Object(_) = json.value else {
            let message = "is no object such as { \"ref\": \"c\", \"mutex\": \"m\" }";
            return Err(place.fault(json.line, key, message));
        };
        let part = |part: &str| json.get(part).and_then(Json::text).unwrap_or("unknown");
        Ok((part("ref").to_string(), part("mutex").to_string()))
    };
    Ok(match key {
        _ if is("run") => Act::Run(time()?),
        _ if is("sleep") => Act::Sleep(time()?),
        _ if is("mem") || is("iorun") => {
            Act::Lost("what reading and writing memory and files takes")
        }
        _ if is("lock") => Act::Lock(text()?),
        _ if is("unlock") => Act::Unlock(text()?),
        _ if is("signal") => Act::Signal(text()?),
        _ if is("broad") => Act::Broadcast(text()?),
        _ if is("wait") => pair(key).map(|(event, lock)| Act::Wait(event, lock))?,
        _ if is("sync") => pair(key).map(|(event, lock)| Act::Sync(event, lock))?,
        _ if is("barrier") => Act::Barrier(text()?),
        _ if is("timer") => {
            let Value::Object(_) = json.value else {
                let message = "is no object such as { \"ref\": \"unique\", \"period\": 10000 }";
                return Err(place.fault(json.line, key, message));
            };
            let period = json.get("period");
            let period = period.map(|it| place.number(&format!("{key}.period"), it, 0.0, 60e6));
            Act::Timer {
                name: json
                    .get("ref")
                    .and_then(Json::text)
                    .unwrap_or("unknown")
                    .to_string(),
                period_us: period.transpose()?.unwrap_or(0.0),
                absolute: json
                    .get("mode")
                    .and_then(Json::text)
                    .is_some_and(|it| it.starts_with("absolute")),
            }
        }
        _ if is("resume") => Act::Resume(text()?),
        _ if is("suspend") => {
            let named = json.text().filter(|it| !it.is_empty());
            Act::Suspend(named.map(str::to_string))
        }
        _ if is("yield") => Act::Lost("yielding the CPU"),
        _ if is("fork") => {
            let message =
                "starts a thread in the middle; all threads of a scenario are there from its start";
            return Err(place.fault(json.line, key, message));
        }
        _ if is("sem_post") => Act::SemPost(text()?),
        _ => Act::SemWait(text()?),
    })
}
