//! Answers for a process of the fleet that stands for a virtual machine, as QEMU's guest agent does from
//! inside a busy guest.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often the guest's scheduler switches for each vCPU that is online, per second.
const SWITCHES: f64 = 1_500.0;

/// A guest and its agent.
struct Guest {
    online: Vec<bool>,
    /// How long after its start the guest begins to answer.
    late: Duration,
    began: Instant,
}

/// Listens on the socket from now on, and speaks to one client at a time, as QEMU does.
///
/// # Errors
/// Where the socket cannot be bound, or the thread cannot be started.
pub(super) fn serve(socket: &Path, vcpus: u32, late: Duration) -> anyhow::Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    let mut guest = Guest {
        online: vec![true; vcpus as usize],
        late,
        began: Instant::now(),
    };
    std::thread::Builder::new()
        .name("agent".into())
        .spawn(move || {
            for stream in listener.incoming().flatten() {
                // The client may go; that is no failure of the guest.
                let _ = guest.speak(stream);
            }
        })?;
    Ok(())
}

impl Guest {
    fn speak(&mut self, stream: UnixStream) -> anyhow::Result<()> {
        let mut out = stream.try_clone()?;
        for line in BufReader::new(stream).split(b'\n') {
            let line = line?;
            let text = line.strip_prefix(b"\xff").unwrap_or(&line);
            let question: Value = serde_json::from_slice(text)?;
            let (command, arguments) = (&question["execute"], &question["arguments"]);
            let (mut start, mut returned): (&[u8], Value) = (b"", json!({}));
            match command.as_str().unwrap_or_default() {
                "guest-sync-delimited" => {
                    (start, returned) = (b"\xff", arguments["id"].clone());
                }
                "guest-file-open" => returned = json!(1000),
                "guest-file-seek" => returned = json!({ "position": 0, "eof": false }),
                "guest-file-read" => {
                    std::thread::sleep(self.late);
                    let text = self.stat();
                    returned =
                        json!({ "count": text.len(), "buf-b64": BASE64.encode(text), "eof": true });
                }
                "guest-get-vcpus" => {
                    let vcpu = |(id, online): (usize, &bool)| json!({ "logical-id": id, "online": online, "can-offline": id > 0 });
                    returned = self.online.iter().enumerate().map(vcpu).collect();
                }
                "guest-set-vcpus" => {
                    for vcpu in arguments["vcpus"].as_array().into_iter().flatten() {
                        let id = vcpu["logical-id"].as_u64().unwrap_or(u64::MAX);
                        if let Some(online) = self.online.get_mut(id as usize) {
                            *online = vcpu["online"].as_bool().unwrap_or(*online);
                        }
                    }
                    returned = json!(arguments["vcpus"].as_array().map_or(0, Vec::len));
                }
                _ => {}
            }
            let answer = json!({ "return": returned });
            out.write_all(start)?;
            out.write_all(format!("{answer}\n").as_bytes())?;
        }
        Ok(())
    }

    /// The guest's `/proc/stat`.
    fn stat(&self) -> String {
        let up = self.began.elapsed().as_secs_f64();
        let online = self.online.iter().filter(|it| **it).count() as f64;
        let mut text = format!("cpu  {} 0 0 1 0 0 0 0 0 0\n", (50.0 * up * online) as u64);
        for (id, _) in self.online.iter().enumerate().filter(|(_, it)| **it) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "cpu{id} {} 0 0 1 0 0 0 0 0 0", (50.0 * up) as u64);
        }
        text + &format!("ctxt {}\n", (SWITCHES * up * online) as u64)
    }
}
