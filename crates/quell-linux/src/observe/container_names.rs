//! The names of containers: cgroups have only the ids that a runtime gives.
//!
//! docker keeps each container's settings in a file of its own, podman a list of all. Both are read, by root,
//! when a container is first seen: no runtime is asked, so none can delay an observation. Where nothing tells
//! a name, the container is known by its id.

use super::sources::Container;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most of a file that is read, in bytes; docker's files have some kilobytes, podman's list one for each
/// container.
const MOST: u64 = 8 << 20;

/// The most names that are kept.
const KEPT: usize = 4096;

/// The names of the containers that were seen.
pub(crate) struct ContainerNames {
    docker: PathBuf,
    podman: PathBuf,
    /// By id; `None` where no name was found.
    known: BTreeMap<String, Option<String>>,
}

impl ContainerNames {
    /// The names that the runtimes keep in their usual folders below `root`.
    pub(crate) fn below(root: &Path) -> ContainerNames {
        ContainerNames {
            docker: root.join("var/lib/docker/containers"),
            podman: root.join("var/lib/containers/storage/overlay-containers/containers.json"),
            known: BTreeMap::new(),
        }
    }

    /// No names.
    #[cfg(test)]
    pub(crate) fn none() -> ContainerNames {
        ContainerNames::below(Path::new("/nonexistent"))
    }

    /// The name of a container.
    pub(crate) fn of(&mut self, container: &Container) -> Option<String> {
        let id = &container.id;
        if let Some(name) = self.known.get(id) {
            return name.clone();
        }
        let name = match container.runtime {
            "docker" => in_docker(&self.docker.join(id).join("config.v2.json")),
            "podman" => in_podman(&self.podman, id),
            _ => None,
        };
        if self.known.len() >= KEPT {
            self.known.clear();
        }
        self.known.insert(id.clone(), name.clone());
        name
    }
}

fn in_docker(file: &Path) -> Option<String> {
    let settings = read(file)?;
    let name = settings.get("Name")?.as_str()?;
    Some(name.trim_start_matches('/').to_string()).filter(|it| !it.is_empty())
}

fn in_podman(file: &Path, id: &str) -> Option<String> {
    let all = read(file)?;
    let is = |it: &&Value| it.get("id").and_then(Value::as_str) == Some(id);
    let container = all.as_array()?.iter().find(is)?;
    let name = container.get("names")?.as_array()?.first()?.as_str()?;
    Some(name.to_string()).filter(|it| !it.is_empty())
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
        let podman = "var/lib/containers/storage/overlay-containers/containers.json";
        write(
            dir.path(),
            podman,
            &format!(r#"[{{"id":"y"}},{{"id":"{ID}","names":["db"]}}]"#),
        );
        for (path, expected) in [
            (format!("/docker/{ID}"), Some("web")),
            (format!("/machine.slice/libpod-{ID}.scope"), Some("db")),
            (
                format!("/machine.slice/libpod-{}.scope", ID.replace('0', "a")),
                None,
            ),
            (format!("/docker/{}", ID.replace('0', "a")), None),
            ("/lxc.payload.web".to_string(), None),
        ] {
            let mut names = ContainerNames::below(dir.path());
            let container = sources::container(&path).unwrap();
            assert_eq!(names.of(&container).as_deref(), expected, "{path}");
            fs::remove_dir_all(dir.path().join("var/lib/docker/containers").join(ID)).ok();
            assert_eq!(names.of(&container).as_deref(), expected, "it is kept");
            write(dir.path(), &docker, r#"{"Name":"/web"}"#);
        }
    }

    #[test]
    fn a_file_that_is_none_gives_no_name() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "[]", r#"{"Name":""}"#, r#"{"Name":7}"#] {
            let docker = format!("var/lib/docker/containers/{ID}/config.v2.json");
            write(dir.path(), &docker, text);
            let container = sources::container(&format!("/docker/{ID}")).unwrap();
            assert_eq!(
                ContainerNames::below(dir.path()).of(&container),
                None,
                "{text}"
            );
        }
    }
}
