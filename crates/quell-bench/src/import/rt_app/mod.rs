//! Scenarios out of rt-app's JSON files.
//!
//! Problem: rt-app describes threads by their events; so do thread programs, with other words and nesting. How: the file is
//! read with its keys in their order, repeated ones too, since that is the order of the events; each event becomes a step.
//! What has no step is left out, and a note says so. docs/simulator.md has the table of what becomes what.

use anyhow::{Context, ensure};
use quell_model::config::Scenario;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// A scenario that says the same as an rt-app file.
#[derive(Debug)]
pub struct Imported {
    /// As TOML; a checked scenario.
    pub toml: String,
    /// What it does not say, or says otherwise.
    pub notes: Vec<String>,
}

/// Translates the text of an rt-app file.
pub fn import(text: &str) -> anyhow::Result<Imported> {
    let file: Json = serde_json::from_str(text).context("not a JSON file")?;
    let tasks = file.get("tasks").map(Json::entries).unwrap_or_default();
    ensure!(!tasks.is_empty(), "has no `tasks`");
    let mut importer = Importer::default();
    let mut seconds = 10.0;
    for (key, value) in file.get("global").map(Json::entries).unwrap_or_default() {
        match (key.as_str(), value) {
            ("duration", Json::Number(s)) if (0.1..=3600.0).contains(s) => seconds = *s,
            ("calibration" | "gnuplot" | "ftrace", _) => {}
            (key, _) if key.starts_with("log") => {}
            _ => importer.note("global", key, "has no counterpart and is left out"),
        }
    }
    let known = ["tasks", "global", "resources"];
    for (key, _) in file.entries().iter().filter(|it| !known.contains(&&*it.0)) {
        importer.note("file", key, "has no counterpart and is left out");
    }
    let mut toml = format!(
        "name = \"rt-app\"\nseconds = {seconds:?}\n\n# rt-app does not say how many; for the simulator.\n\
         [host]\ncpus = 4\n\n[[tenant]]\nname = \"rt-app\"\nclass = \"batch\"\n"
    );
    for (name, task) in tasks {
        toml += &importer.task(name, task);
    }
    let scenario = Scenario::parse(Path::new("rt-app"), &toml);
    scenario.context("its tasks make no scenario that Quell runs")?;
    Ok(Imported {
        toml,
        notes: importer.notes,
    })
}

#[derive(Default)]
struct Importer {
    notes: Vec<String>,
    names: BTreeSet<String>,
}

/// The steps so far, and inside each lock that is held.
struct Steps(Vec<(String, Vec<String>)>);

impl Steps {
    fn push(&mut self, step: String) {
        if let Some((_, steps)) = self.0.last_mut() {
            steps.push(step);
        }
    }

    /// Ends the innermost lock's program; gives the lock. One that did nothing was not needed.
    fn unlock(&mut self) -> Option<String> {
        if self.0.len() < 2 {
            return None;
        }
        let (lock, steps) = self.0.pop()?;
        if !steps.is_empty() {
            let (name, steps) = (quoted(&lock), steps.join(", "));
            self.push(format!(
                "{{ lock = {{ name = {name}, program = [{steps}] }} }}"
            ));
        }
        Some(lock)
    }
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_string()).to_string()
}

fn step(word: &str, name: &str) -> String {
    format!("{{ {word} = {} }}", quoted(name))
}

impl Importer {
    fn note(&mut self, place: &str, key: &str, what: &str) {
        self.notes.push(format!("{place}: `{key}` {what}"));
    }

    /// One task's thread table.
    fn task(&mut self, name: &str, task: &Json) -> String {
        let instances = match task.get("instance") {
            None => 1.0,
            Some(Json::Number(count)) if (0.0..=1024.0).contains(count) => count.floor(),
            Some(_) => {
                self.note(name, "instance", "is no number from 0 to 1024; 1 is taken");
                1.0
            }
        };
        if instances == 0.0 {
            self.note(name, "instance", "is 0: the task is left out");
            return String::new();
        }
        let single = [(String::new(), Json::Object(task.entries().to_vec()))];
        let phases = match task.get("phases") {
            Some(phases) => {
                let known = ["phases", "instance", "loop"];
                for (key, value) in task.entries().iter().filter(|it| !known.contains(&&*it.0)) {
                    self.event(name, name, key, value, &mut Steps(Vec::new()));
                }
                phases.entries()
            }
            None => &single[..],
        };
        if task
            .get("loop")
            .is_some_and(|turns| *turns != Json::Number(-1.0))
        {
            self.note(
                name,
                "loop",
                "is left out: threads repeat their programs for ever",
            );
        }
        let mut program = Vec::new();
        for (phase, events) in phases {
            let place = format!("{name} {phase}");
            let mut steps = Steps(vec![(String::new(), Vec::new())]);
            for (key, value) in events.entries() {
                self.event(&place, name, key, value, &mut steps);
            }
            while let Some(lock) = steps.unlock() {
                self.note(&place, &lock, "is locked at the end; it is unlocked there");
            }
            let steps = steps.0.pop().map(|(_, steps)| steps).unwrap_or_default();
            let turns = events.get("loop").filter(|_| !phase.is_empty());
            match turns {
                _ if steps.is_empty() => self.note(&place, phase, "has no step and is left out"),
                Some(Json::Number(turns)) if *turns < 0.0 => {
                    program = steps;
                    self.note(&place, "loop", "is without end: only this phase is taken");
                    break;
                }
                Some(Json::Number(turns)) if (2.0..=1e6).contains(turns) => {
                    let (turns, steps) = (turns.floor(), steps.join(", "));
                    let repeat =
                        format!("{{ repeat = {{ times = {turns}, program = [{steps}] }} }}");
                    program.push(repeat);
                }
                None | Some(Json::Number(1.0)) => program.extend(steps),
                Some(_) => {
                    self.note(&place, "loop", "is no number from 1 to 1000000; 1 is taken");
                    program.extend(steps);
                }
            }
        }
        if program.is_empty() {
            self.note(name, name, "does nothing that can be said, and is left out");
            return String::new();
        }
        let threads = instances as u32;
        let thread = self.thread_name(name, if threads > 1 { 10 } else { 15 });
        format!(
            "\n[[tenant.thread]]\nname = {}\ncount = {threads}\nprogram = [\n    {},\n]\n",
            quoted(&thread),
            program.join(",\n    ")
        )
    }

    /// A name that threads can have, and no other has.
    fn thread_name(&mut self, name: &str, longest: usize) -> String {
        let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let letters = name.chars().map(|c| if sound(c) { c } else { '_' });
        let mut thread: String = letters.take(longest).collect();
        let mut number = 0;
        while thread.is_empty() || !self.names.insert(thread.clone()) {
            number += 1;
            thread = format!("t{number}");
        }
        if thread != name {
            self.note(name, name, &format!("is named `{thread}` here"));
        }
        thread
    }

    /// One key of a phase, of which rt-app knows events by how they begin (`run0`, `run1`).
    fn event(&mut self, place: &str, task: &str, key: &str, value: &Json, steps: &mut Steps) {
        let text = value.text();
        let is = |word: &str| key.starts_with(word);
        let timer = value.get("period");
        match value {
            _ if ["loop", "instance"].contains(&key) => {}
            Json::Number(us) if is("run") => steps.push(format!("{{ run_us = {us:?} }}")),
            Json::Number(us) if is("sleep") => steps.push(format!("{{ sleep_us = {us:?} }}")),
            Json::Object(_) if is("timer") => match timer {
                Some(Json::Number(us)) => {
                    steps.push(format!("{{ timer_us = {us:?} }}"));
                    if value.get("mode").and_then(Json::text) != Some("absolute") {
                        let what = "counts from the start here, not from a missed period's end";
                        self.note(place, key, what);
                    }
                }
                _ => self.note(place, key, "has no period and is left out"),
            },
            Json::Object(_) if is("wait") || is("sync") => {
                let Some(event) = value.get("ref").and_then(Json::text) else {
                    return self.note(place, key, "has no `ref` and is left out");
                };
                self.note(place, key, "takes signals that came before it, too");
                if is("sync") {
                    steps.push(step("signal", event));
                }
                // Who waits has given back the lock; a lock around it is two.
                let mut held = Vec::new();
                held.extend(std::iter::from_fn(|| steps.unlock()));
                steps.push(step("wait", event));
                steps
                    .0
                    .extend(held.into_iter().rev().map(|lock| (lock, Vec::new())));
            }
            _ => match text {
                Some(lock) if is("lock") => steps.0.push((lock.to_string(), Vec::new())),
                Some(lock) if is("unlock") => match steps.0.last() {
                    Some((last, _)) if last == lock && steps.0.len() > 1 => {
                        steps.unlock();
                    }
                    _ => self.note(place, key, "is not of the last lock taken and is left out"),
                },
                Some(event) if is("signal") => steps.push(step("signal", event)),
                Some(event) if is("broad") => steps.push(step("broadcast", event)),
                Some(name) if is("barrier") => steps.push(step("barrier", name)),
                Some(name) if is("suspend") => {
                    let name = if name.is_empty() { task } else { name };
                    steps.push(step("wait", &format!("resume {name}")));
                }
                Some(name) if is("resume") => {
                    steps.push(step("signal", &format!("resume {name}")));
                }
                _ => self.note(place, key, "has no counterpart and is left out"),
            },
        }
    }
}

/// JSON whose objects keep the order of their keys, and keys that come more than once.
#[derive(Debug, Clone, PartialEq)]
enum Json {
    Number(f64),
    Text(String),
    Object(Vec<(String, Json)>),
    /// What rt-app's events do not use.
    Other,
}

impl Json {
    fn entries(&self) -> &[(String, Json)] {
        match self {
            Json::Object(entries) => entries,
            _ => &[],
        }
    }

    fn get(&self, key: &str) -> Option<&Json> {
        let mut entries = self.entries().iter();
        entries
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }

    fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        struct JsonVisitor;
        impl<'de> Visitor<'de> for JsonVisitor {
            type Value = Json;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
                Ok(Json::Other)
            }

            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Other)
            }

            fn visit_i64<E>(self, number: i64) -> Result<Json, E> {
                Ok(Json::Number(number as f64))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Json, E> {
                Ok(Json::Number(number as f64))
            }

            fn visit_f64<E>(self, number: f64) -> Result<Json, E> {
                Ok(Json::Number(number))
            }

            fn visit_str<E>(self, text: &str) -> Result<Json, E> {
                Ok(Json::Text(text.to_string()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                while list.next_element::<Json>()?.is_some() {}
                Ok(Json::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Json::Object(entries))
            }
        }
        deserializer.deserialize_any(JsonVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: &str = r#"{
        "global": { "duration": 5, "calibration": "CPU0", "default_policy": "SCHED_OTHER" },
        "tasks": {
            "a task": { "cpus": [0], "loop": -1, "phases": {
                "p1": { "loop": 3, "run": 100, "lock": "m", "run": 20, "wait": { "ref": "c", "mutex": "m" },
                        "run1": 5, "unlock": "m" },
                "p2": { "sleep": 50, "suspend": "", "barrier": "b" } } },
            "other": { "instance": 2, "lock0": "m", "runtime": 7, "signal": "c", "unlock0": "m", "resume": "a task",
                       "barrier": "b", "timer": { "ref": "unique", "period": 1000, "mode": "absolute" } }
        } }"#;

    #[test]
    fn events_become_steps_in_their_order() {
        let imported = import(FILE).unwrap();
        let scenario = Scenario::parse(Path::new("t"), &imported.toml).unwrap();
        assert_eq!(scenario.seconds, 5.0);
        let programs: Vec<&str> = imported.toml.split("program = [\n").skip(1).collect();
        assert!(
            programs[0].starts_with(
                r#"    { repeat = { times = 3, program = [{ run_us = 100.0 }, { lock = { name = "m", program = [{ run_us = 20.0 }] } }, { wait = "c" }, { lock = { name = "m", program = [{ run_us = 5.0 }] } }] } },
    { sleep_us = 50.0 },
    { wait = "resume a task" },
    { barrier = "b" },
]"#
            ),
            "{}",
            programs[0]
        );
        assert!(
            programs[1].starts_with(
                r#"    { lock = { name = "m", program = [{ run_us = 7.0 }, { signal = "c" }] } },
    { signal = "resume a task" },
    { barrier = "b" },
    { timer_us = 1000.0 },
]"#
            ),
            "{}",
            programs[1]
        );
        let said = |what: &str| imported.notes.iter().any(|note| note.contains(what));
        assert!(said("`cpus` has no counterpart") && said("named `a_task`"));
        assert!(said("`default_policy` has no counterpart"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = import(&text);
        }

        #[test]
        fn no_json_panics(
            events in prop::collection::vec((
                prop_oneof![
                    Just("run"), Just("sleep"), Just("timer"), Just("lock"), Just("unlock"), Just("wait"), Just("sync"),
                    Just("signal"), Just("broad"), Just("barrier"), Just("suspend"), Just("resume"), Just("loop"),
                    Just("instance"), Just("phases"), Just("cpus"), Just("delay"),
                ],
                prop_oneof![
                    Just("1"), Just("-1"), Just("1e300"), Just("\"m\""), Just("\"\""), Just("null"), Just("[1]"), Just("{}"),
                    Just("{\"ref\":\"m\",\"mutex\":\"m\"}"), Just("{\"period\":5}"), Just("{\"a\":{\"run\":5,\"loop\":2}}"),
                ],
            ), 0..12),
            name in "[a-z \"\\\\é]{0,20}",
        ) {
            let events: Vec<String> = events.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            let name = serde_json::to_string(&name).unwrap();
            let task = format!("{name}:{{{}}}", events.join(","));
            if let Ok(imported) = import(&format!("{{\"tasks\":{{{task},\"z\":{{\"run\":5}}}}}}")) {
                prop_assert!(Scenario::parse(Path::new("t"), &imported.toml).is_ok());
            }
        }

        #[test]
        fn no_mutation_panics(start in 0..FILE.len(), length in 0..40usize, instead in "[a-z0-9{}\":,-]{0,8}") {
            let end = (start + length).min(FILE.len());
            let _ = import(&format!("{}{instead}{}", &FILE[..start], &FILE[end..]));
        }
    }
}
