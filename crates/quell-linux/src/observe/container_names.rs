//! The names of containers: cgroups have only the ids that a runtime gives.
//!
//! docker keeps each container's settings in a file of its own, podman lists of all. They are read, by root,
//! when a container is first seen: no runtime is asked, so none can delay an observation. Where nothing tells
//! a name, the container is known by its id.

use super::sources::Container;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most of a file that is read, in bytes; docker's files have some kilobytes, podman's lists one for each
/// container.
const MOST: u64 = 8 << 20;

/// The most names that are kept.
const KEPT: usize = 4096;

/// The drivers of podman's storage; each keeps lists of its own.
const DRIVERS: [&str; 4] = ["overlay", "vfs", "btrfs", "zfs"];

/// podman's lists of a driver. Containers that go with their first process (`--rm`) are in one of their own.
const LISTS: [&str; 2] = ["containers.json", "volatile-containers.json"];

/// The names of the containers that were seen.
pub(crate) struct ContainerNames {
    docker: PathBuf,
    podman: Vec<List>,
    /// By id, what was found.
    known: BTreeMap<String, Found>,
}

/// A container's name, and the runtime that has it.
#[derive(Clone)]
struct Found {
    runtime: &'static str,
    name: String,
}

/// A list of podman's, as of its last change: podman puts a new file in the place of the old one, and two
/// changes may have the same time.
struct List {
    path: PathBuf,
    changed: Option<(u64, SystemTime)>,
    names: BTreeMap<String, String>,
}

impl ContainerNames {
    /// The names that the runtimes keep in their usual folders below `root`.
    pub(crate) fn below(root: &Path) -> ContainerNames {
        let storage = root.join("var/lib/containers/storage");
        let lists = DRIVERS.iter().flat_map(|driver| {
            let folder = storage.join(format!("{driver}-containers"));
            LISTS.map(|it| List::of(folder.join(it)))
        });
        ContainerNames {
            docker: root.join("var/lib/docker/containers"),
            podman: lists.collect(),
            known: BTreeMap::new(),
        }
    }

    /// No names.
    #[cfg(test)]
    pub(crate) fn none() -> ContainerNames {
        ContainerNames::below(Path::new("/nonexistent"))
    }

    /// The name of a container. Where only the id told the runtime, and docker has a container of that id, it
    /// is docker's.
    pub(crate) fn of(&mut self, container: &mut Container) -> Option<String> {
        // Users have runtimes of their own, and might take the id of one that is not theirs.
        if container.is_users() {
            return None;
        }
        if let Some(found) = self.known.get(&container.id) {
            container.runtime = found.runtime;
            return Some(found.name.clone());
        }
        let id = &container.id;
        let (runtime, name) = match container.runtime {
            "docker" => ("docker", in_docker(&self.docker, id)),
            "podman" => (
                "podman",
                self.podman.iter_mut().find_map(|it| it.name_of(id)),
            ),
            "" => ("docker", in_docker(&self.docker, id)),
            _ => return None,
        };
        let name = name?;
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        container.runtime = runtime;
        let found = Found {
            runtime,
            name: name.clone(),
        };
        self.known.insert(id.clone(), found);
        Some(name)
    }
}

impl List {
    fn of(path: PathBuf) -> List {
        List {
            path,
            changed: None,
            names: BTreeMap::new(),
        }
    }

    fn name_of(&mut self, id: &str) -> Option<String> {
        let file = std::fs::metadata(&self.path).ok()?;
        let changed = (file.ino(), file.modified().ok()?);
        if self.changed != Some(changed) {
            self.changed = Some(changed);
            let all = read(&self.path).unwrap_or_default();
            let of = |it: &Value| {
                let name = it.get("names")?.as_array()?.first()?.as_str()?;
                Some((it.get("id")?.as_str()?.to_string(), name.to_string()))
            };
            self.names = all
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(of)
                .collect();
        }
        self.names.get(id).filter(|it| !it.is_empty()).cloned()
    }
}

fn in_docker(folder: &Path, id: &str) -> Option<String> {
    let settings = read(&folder.join(id).join("config.v2.json"))?;
    let name = settings.get("Name")?.as_str()?;
    Some(name.trim_start_matches('/').to_string()).filter(|it| !it.is_empty())
}

fn read(file: &Path) -> Option<Value> {
    let mut text = Vec::new();
    let file = File::open(file).ok()?;
    file.take(MOST).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::super::sources;
    use super::*;
    use std::fs;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn names_as_docker_and_podman_keep_them() {
        let dir = tempfile::tempdir().unwrap();
        let docker = format!("var/lib/docker/containers/{ID}/config.v2.json");
        write(
            dir.path(),
            &docker,
            r#"{"ID":"x","Name":"/web","Config":{}}"#,
        );
        let podman = "var/lib/containers/storage/overlay-containers";
        let [kept, removed, other, copied] = ["a", "b", "c", "d"].map(|it| ID.replace('0', it));
        let list = format!(r#"[{{"id":"y"}},{{"id":"{kept}","names":["db"]}}]"#);
        write(dir.path(), &format!("{podman}/containers.json"), &list);
        let list = format!(r#"[{{"id":"{removed}","names":["job"]}}]"#);
        write(
            dir.path(),
            &format!("{podman}/volatile-containers.json"),
            &list,
        );
        let list = format!(r#"[{{"id":"{copied}","names":["copy"]}}]"#);
        let vfs = "var/lib/containers/storage/vfs-containers/containers.json";
        write(dir.path(), vfs, &list);
        let mut names = ContainerNames::below(dir.path());
        for (path, runtime, expected) in [
            (format!("/docker/{ID}"), "docker", Some("web")),
            // docker with a parent of the user's choice.
            (format!("/ecs/task/{ID}"), "docker", Some("web")),
            (
                format!("/machine.slice/libpod-{kept}.scope"),
                "podman",
                Some("db"),
            ),
            (
                format!("/machine.slice/libpod-{removed}.scope"),
                "podman",
                Some("job"),
            ),
            (
                format!("/libpod_parent/libpod-{copied}"),
                "podman",
                Some("copy"),
            ),
            (format!("/docker/{other}"), "docker", None),
            (
                format!("/user.slice/user-1.slice/user@1.service/docker-{ID}.scope"),
                "docker",
                None,
            ),
            ("/lxc.payload.web".to_string(), "lxc", None),
        ] {
            let mut container = sources::container(&path).unwrap();
            assert_eq!(names.of(&mut container).as_deref(), expected, "{path}");
            assert_eq!(container.runtime, runtime, "{path}");
        }
        // A name that is known is kept; one that comes late is found.
        fs::remove_dir_all(dir.path().join("var/lib/docker")).unwrap();
        let of = |names: &mut ContainerNames, id: &str| {
            names.of(&mut sources::container(&format!("/docker/{id}")).unwrap())
        };
        assert_eq!(of(&mut names, ID).as_deref(), Some("web"));
        let late = format!("var/lib/docker/containers/{other}/config.v2.json");
        write(dir.path(), &late, r#"{"Name":"/late"}"#);
        assert_eq!(of(&mut names, &other).as_deref(), Some("late"));
    }

    #[test]
    fn a_list_that_another_took_the_place_of_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = "var/lib/containers/storage/overlay-containers";
        let time = SystemTime::UNIX_EPOCH;
        let put = |id: &str, name: &str| {
            let list = format!(r#"[{{"id":"{id}","names":["{name}"]}}]"#);
            write(dir.path(), &format!("{folder}/new"), &list);
            let folder = dir.path().join(folder);
            let new = File::options().write(true).open(folder.join("new"));
            new.unwrap().set_modified(time).unwrap();
            fs::rename(folder.join("new"), folder.join("containers.json")).unwrap();
        };
        let [first, second] = ["a", "b"].map(|it| ID.replace('0', it));
        let mut names = ContainerNames::below(dir.path());
        let mut of = |id: &str| {
            let path = format!("/machine.slice/libpod-{id}.scope");
            names.of(&mut sources::container(&path).unwrap())
        };
        put(&first, "one");
        assert_eq!(of(&first).as_deref(), Some("one"));
        put(&second, "two"); // at the same time
        assert_eq!(of(&second).as_deref(), Some("two"));
    }

    #[test]
    fn a_file_that_is_none_gives_no_name() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", r#"{"Name":""}"#, r#"{"Name":7}"#] {
            let docker = format!("var/lib/docker/containers/{ID}/config.v2.json");
            write(dir.path(), &docker, text);
            let mut container = sources::container(&format!("/docker/{ID}")).unwrap();
            assert_eq!(
                ContainerNames::below(dir.path()).of(&mut container),
                None,
                "{text}"
            );
        }
    }
}
