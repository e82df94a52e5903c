use super::socket::{AgentSocket, Connection, DELIMITER, Socket};
use super::*;
use proptest::prelude::*;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_millis(300);

fn agent_at(path: impl Into<std::path::PathBuf>, within: Duration) -> AgentSocket {
    Agent::new(Socket::at(path), within)
}

/// A socket whose server answers, on each connection, each line that is sent as `says` decides.
fn guest(
    mut says: impl FnMut(&mut UnixStream, &str) -> io::Result<()> + Send + 'static,
) -> (TempDir, AgentSocket) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("agent");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut out = stream.try_clone().unwrap();
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if says(&mut out, &line).is_err() {
                    break;
                }
            }
        }
    });
    (folder, agent_at(path, WITHIN))
}

/// Answers `guest-sync-delimited`; returns whether that was asked.
fn synced(out: &mut UnixStream, line: &str) -> io::Result<bool> {
    let Some(at) = line.find('{').filter(|_| line.contains("sync-delimited")) else {
        return Ok(false);
    };
    let question: Value = serde_json::from_str(&line[at..]).unwrap();
    out.write_all(&[DELIMITER])?;
    writeln!(out, "{{\"return\": {}}}", question["arguments"]["id"])?;
    Ok(true)
}

/// A server that synchronizes, then gives the same answer to every other question.
fn always(answer: &'static str) -> (TempDir, AgentSocket) {
    guest(move |out, line| match synced(out, line)? {
        true => Ok(()),
        false => out.write_all(answer.as_bytes()),
    })
}

#[test]
fn nobody_there() {
    let mut agent = agent_at("/nonexistent/agent", WITHIN);
    assert!(matches!(agent.stat(), Err(GuestError::Away(_))));
}

#[test]
fn guests_that_do_not_answer_as_they_should() {
    for (answer, expected) in [
        ("", "did not answer within 300 ms"),
        ("{\"return\": ", "did not answer within 300 ms"),
        ("pardon?\n", "means nothing"),
        ("{}\n", "neither a result nor an error"),
        ("{\"return\": \"five\"}\n", "means nothing"),
        ("{\"return\": 99999999999999999999}\n", "means nothing"),
        (
            "{\"error\": {\"desc\": \"no\\nsuch\\u001bfile\"}}\n",
            "refused `guest-file-open`: no such file",
        ),
        // A handle first, and then an answer that is no part of a file.
        ("{\"return\": 7}\n", "means nothing"),
    ] {
        let (_folder, mut agent) = always(answer);
        let error = agent.stat().unwrap_err().to_string();
        assert!(error.contains(expected), "{answer:?}: {error}");
        assert!(agent.set_online(&Online::First(1)).is_err(), "{answer:?}");
    }
}

#[test]
fn answers_without_end_are_not_kept() {
    let (_folder, mut agent) = guest(|out, line| {
        if !synced(out, line)? {
            loop {
                out.write_all(&[b'x'; 4096])?;
            }
        }
        Ok(())
    });
    let error = agent.stat().unwrap_err().to_string();
    assert!(error.contains("more than 262144 bytes"), "{error}");
    assert!(agent.channel.connection.is_none());
}

#[test]
fn a_file_without_end_is_not_read_to_it() {
    let part = format!(
        "{{\"return\": {{\"count\": 3, \"buf-b64\": \"{}\", \"eof\": false}}}}\n",
        BASE64.encode("cpu")
    );
    let mut reads = 0;
    let (_folder, mut agent) = guest(move |out, line| {
        if synced(out, line)? {
            return Ok(());
        }
        if line.contains("guest-file-open") {
            return out.write_all(b"{\"return\": 7}\n");
        }
        reads += 1;
        assert!(reads <= READS_MAX);
        out.write_all(part.as_bytes())
    });
    let error = agent.stat().unwrap_err().to_string();
    assert!(error.contains("not a /proc/stat"), "{error}");
}

#[test]
fn what_was_left_unsaid_is_skipped() {
    // Late answers of an earlier connection, and half of one, come before the answer that counts.
    let (_folder, mut agent) = guest(|out, line| {
        if line.contains("sync-delimited") {
            out.write_all(b"{\"return\": 1}\n{\"ret\xff{\"return\": 77}\n\xff\xff{\n")?;
        }
        match synced(out, line)? {
            true => Ok(()),
            false => out.write_all(b"{\"return\": [{\"logical-id\": 0, \"online\": true}]}\n"),
        }
    });
    assert_eq!(
        agent.set_online(&Online::First(1)).unwrap(),
        CpuSet::first(1)
    );
}

#[test]
fn the_first_ones_stay() {
    let vcpu = |(id, online, can_offline): (u64, bool, bool)| Vcpu {
        logical_id: id,
        online,
        can_offline,
    };
    let (yes, no) = (true, false);
    // (online, can go offline) from the first on, the number wanted -> the CPUs that come and go
    for (vcpus, count, expected) in [
        (vec![(yes, no), (yes, yes), (yes, yes)], 2, vec![(2, no)]),
        (
            vec![(yes, no), (no, yes), (no, yes)],
            3,
            vec![(1, yes), (2, yes)],
        ),
        (vec![(yes, no), (yes, yes)], 2, vec![]),
        (vec![(yes, no), (yes, yes)], 9, vec![]),
        (vec![(yes, no), (yes, yes)], 0, vec![(1, no)]),
        (
            vec![(yes, no), (no, yes), (yes, yes)],
            2,
            vec![(1, yes), (2, no)],
        ),
        // The last CPU cannot go: it counts.
        (vec![(yes, no), (yes, yes), (yes, no)], 2, vec![(1, no)]),
        (vec![(yes, no), (yes, no), (yes, no)], 1, vec![]),
    ] {
        let vcpus: Vec<Vcpu> = (0..)
            .zip(vcpus)
            .map(|(id, (on, off))| vcpu((id, on, off)))
            .collect();
        assert_eq!(
            changes(&vcpus, &Online::First(count)),
            expected,
            "{vcpus:?}, {count}"
        );
    }
    let vcpus: Vec<Vcpu> = [(0, yes, no), (1, yes, yes), (2, no, yes), (3, no, yes)]
        .map(vcpu)
        .into();
    for (wanted, expected) in [
        ("0,3", vec![(1, no), (3, yes)]),
        ("0-1", vec![]),
        ("2", vec![(1, no), (2, yes)]),
    ] {
        let wanted = Online::Exactly(wanted.parse().unwrap());
        assert_eq!(changes(&vcpus, &wanted), expected, "{wanted:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_guest_says(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (mut guest, host) = UnixStream::pair().unwrap();
        guest.write_all(&bytes).unwrap();
        drop(guest);
        let mut connection = Connection { stream: host, rest: Vec::new() };
        // Nothing may panic or wait; the server has gone, so it cannot have answered.
        let _ = connection.read_to(b'\n', Instant::now() + WITHIN, WITHIN);
        prop_assert!(connection.sync(1 << 60, WITHIN).is_err());
    }
}

/// A real agent, of this host instead of a guest; `None`: it is not installed.
fn real(folder: &TempDir) -> Option<(Running, AgentSocket)> {
    let path = folder.path().join("agent");
    // The PATH of users often lacks its folder.
    let program = ["/usr/sbin/qemu-ga", "/usr/bin/qemu-ga"];
    let program = program.into_iter().find(|it| Path::new(it).exists())?;
    let child = Command::new(program)
        .args(["--method=unix-listen", "--path"])
        .arg(&path)
        .arg("--statedir")
        .arg(folder.path())
        // A safeguard, should a test ever ask for a change: these are the host's CPUs.
        .args(["-b", "guest-set-vcpus"])
        .stderr(Stdio::null())
        .spawn();
    let child = Running(child.ok()?);
    for _ in 0..500 {
        if path.exists() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    Some((child, agent_at(path, Duration::from_secs(5))))
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_agent() {
    let folder = TempDir::new().unwrap();
    let Some((child, mut agent)) = real(&folder) else {
        eprintln!("not tested: qemu-ga is not installed");
        return;
    };
    let first = agent.stat().unwrap();
    thread::sleep(Duration::from_millis(50));
    let second = agent.stat().unwrap();
    assert!(second.switches > first.switches, "{first:?} {second:?}");
    // All CPUs that exist: nothing is to change, and the agent may not change it.
    for wanted in [
        Online::First(u32::MAX),
        Online::Exactly(first.online.clone()),
    ] {
        assert_eq!(agent.set_online(&wanted).unwrap(), first.online);
    }
    // The agent ends, and a new one does not know the files that were opened.
    drop(child);
    assert!(matches!(agent.stat(), Err(GuestError::Away(_))));
    std::fs::remove_file(folder.path().join("agent")).unwrap_or(());
    let (_child, _) = real(&folder).unwrap();
    assert!(agent.stat().unwrap().switches >= second.switches);
}
