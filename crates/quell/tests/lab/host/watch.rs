//! A host that an agent observes by rules only, and what it says of its tenants all the while.

use crate::common;
use quell_lab::Lab;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// Before a script: the agent with the rules in `quell.toml`, whose words are written down time after time.
///
/// `at EVENT` writes down when something happened. `steady` waits until all that was done has been seen.
const BEFORE: &str = r#"
now() { read -r s rest < /proc/uptime; echo $s; }
at() { echo "$(now) $*" >> $OUT/events; }
status() { quell status --json --socket /run/q.sock; }
await() { for turn in $(seq 400); do "$@" && return; sleep 0.05; done; echo "not in time: $*"; exit 1; }
box() { # a root file system that has a shell, and two processes that stay
    mkdir -p $1/bin $1/dev $1/etc $1/proc $1/sys
    cp /lab/busybox $1/bin/busybox
    for name in sh sleep; do ln -s busybox $1/bin/$name; done
    printf '#!/bin/sh\nsleep 1000 & wait\n' > $1/bin/two; chmod 755 $1/bin/two
}
cat > /root/quell.toml <<END
[agent]
policy = []
$RULES
END
quell run -c /root/quell.toml --socket /run/q.sock --journal /root/journal > $OUT/agent.log 2>&1 &
agent=$!
await status > /dev/null 2>&1
while :; do status; echo "{\"at\": $(now)}"; sleep 0.03; done >> $OUT/watch & watch=$!
"#;

/// After a script: what the agent said in its last second counts too.
const AFTER: &str = r#"
sleep 1.2; kill $watch; wait $watch; kill $agent; wait $agent
echo "SIGTERM: $?"
"#;

/// A tenant that a rule found, at some time.
type Tenant = Value;

/// What an agent said of the tenants of its host.
pub struct Watched {
    /// What the script said.
    pub said: String,
    /// Files of the guest's.
    pub folder: tempfile::TempDir,
    /// The tenants, and the time when they had been asked for.
    pub samples: Vec<(f64, Vec<Tenant>)>,
    events: Vec<(f64, String)>,
}

/// Runs a script on a host with these packages, beside an agent that has these rules; `None` where the lab
/// does not have them.
pub fn watched(packages: &[&str], rules: &str, script: &str) -> Option<Watched> {
    let (folder, said) = on_host(
        packages,
        &format!("RULES='{rules}'\n{BEFORE}{script}{AFTER}"),
    )?;
    println!("{said}");
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    println!("{}", read("agent.log"));
    let events = read("events");
    let events = events.lines().map(|line| {
        let (time, event) = line.split_once(' ').unwrap();
        (time.parse().unwrap(), event.to_string())
    });
    let text = read("watch");
    let (mut samples, mut tenants) = (Vec::new(), Vec::new());
    // The last word may be cut short, as the watch was killed.
    for value in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
        let Ok(mut value) = value else { break };
        match value["at"].as_f64() {
            Some(time) => samples.push((time, std::mem::take(&mut tenants))),
            None => tenants = value["tenants"].as_array_mut().map(std::mem::take).unwrap(),
        }
    }
    Some(Watched {
        events: events.collect(),
        said,
        samples,
        folder,
    })
}

/// Runs a script on a host with these packages; `None` where the lab does not have them.
pub fn on_host(packages: &[&str], script: &str) -> Option<(tempfile::TempDir, String)> {
    if !common::lab_is_ready() {
        return None;
    }
    let names: Vec<String> = packages.iter().map(|it| it.to_string()).collect();
    let wanted: String = packages
        .iter()
        .map(|it| format!(" --package {it}"))
        .collect();
    if !Lab::open().unwrap().has_system(&names) {
        let how = match packages.is_empty() {
            true => "quell lab setup --system".to_string(),
            false => format!("quell lab host{wanted} -- true"),
        };
        match packages.is_empty() {
            true => quell_testkit::skip!(Lab, "the lab has no system (`{how}`)"),
            false => quell_testkit::skip!(
                Other,
                "the lab has no such system (`{how}`; `./dev test nightly`)"
            ),
        }
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["lab", "host", "--cpus", "2", "--out"])
        .arg(folder.path())
        .args(wanted.split_whitespace())
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{log}");
    Some((folder, said))
}

impl Watched {
    /// The time of an event.
    pub fn time(&self, event: &str) -> f64 {
        let found = self.events.iter().find(|it| it.1 == event);
        found
            .unwrap_or_else(|| panic!("no event `{event}`: {:?}", self.events))
            .0
    }

    /// The names of all that ever was a tenant of this source.
    pub fn ever(&self, source: &str) -> BTreeSet<&str> {
        let all = self.samples.iter().flat_map(|it| &it.1);
        all.filter(|it| it["labels"]["source"] == source)
            .map(|it| it["name"].as_str().unwrap())
            .collect()
    }

    /// The tenant as it was at the time of an event.
    pub fn tenant(&self, name: &str, event: &str) -> &Tenant {
        let time = self.time(event);
        let sample = self
            .samples
            .iter()
            .take_while(|it| it.0 <= time)
            .last()
            .unwrap();
        let found = sample.1.iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("`{name}` is no tenant at `{event}`: {:?}", sample.1))
    }

    /// How long after this time the tenant was seen first, and how long after this time it was gone, in s.
    pub fn took(&self, name: &str, came: f64, left: f64) -> (f64, f64) {
        let is_there = |it: &(f64, Vec<Tenant>)| it.1.iter().any(|it| it["name"] == name);
        let mut later = self
            .samples
            .iter()
            .skip_while(|it| !is_there(it))
            .peekable();
        let seen = later
            .peek()
            .unwrap_or_else(|| panic!("`{name}` was never seen"))
            .0;
        let mut later = later.skip_while(|it| is_there(it));
        let gone = later
            .next()
            .unwrap_or_else(|| panic!("`{name}` was never gone"))
            .0;
        assert!(!later.any(is_there), "`{name}` came again");
        (seen - came, gone - left)
    }

    /// The tenant was gone within a second of the event.
    pub fn is_gone(&self, name: &str, event: &str) {
        let left = self.time(event);
        let (_, gone) = self.took(name, left, left);
        println!("{name}: gone {gone:.2} s after its end");
        assert!(gone <= 1.0, "{name}: {gone}");
    }
}
