//! Names and images of containers, from the runtimes whose sockets are there.
//!
//! Docker and Podman answer their HTTP API ([`docker`]), containerd and CRI-O the CRI ([`cri`]).
//! A container is asked for by its id, once, when it is first seen: the answer does not change.

use std::path::{Path, PathBuf};

use tracing::{info, warn};
use wattpipe_pipeline::registry::HostRoots;

use super::{
    config::Sockets,
    http::Peer,
    knowledge::{ContainerMeta, on_host},
};

mod cri;
mod docker;

/// A runtime's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Api {
    /// Docker's, which Podman speaks too.
    Docker,
    /// The container runtime interface of Kubernetes.
    Cri,
}

/// A place where a runtime may listen.
#[derive(Clone, Copy, Debug)]
struct Place {
    path: &'static str,
    api: Api,
    runtime: &'static str,
}

/// The usual places.
const PLACES: [Place; 7] = [
    Place { path: "/run/docker.sock", api: Api::Docker, runtime: "docker" },
    Place { path: "/var/run/docker.sock", api: Api::Docker, runtime: "docker" },
    Place { path: "/run/podman/podman.sock", api: Api::Docker, runtime: "podman" },
    Place { path: "/run/containerd/containerd.sock", api: Api::Cri, runtime: "containerd" },
    Place { path: "/run/k3s/containerd/containerd.sock", api: Api::Cri, runtime: "containerd" },
    Place { path: "/run/crio/crio.sock", api: Api::Cri, runtime: "cri-o" },
    Place { path: "/var/run/crio/crio.sock", api: Api::Cri, runtime: "cri-o" },
];

/// A runtime's socket, for `doctor` and for asking.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// Its name.
    pub name: &'static str,
    /// Its socket.
    pub socket: PathBuf,
    api: Api,
    /// Its last request failed: the next failure is no news.
    failing: bool,
}

/// The runtimes to ask, in order. Looks for sockets, does not connect.
pub fn find(sockets: &Sockets, host: &HostRoots) -> Vec<Runtime> {
    let of = |name, socket: PathBuf, api| Runtime { name, socket, api, failing: false };
    match sockets {
        Sockets::List(paths) => paths
            .iter()
            .map(|path| {
                let text = path.to_string_lossy();
                let has = |part: &str| text.contains(part);
                match () {
                    () if has("crio") => of("cri-o", path.clone(), Api::Cri),
                    () if has("containerd") => of("containerd", path.clone(), Api::Cri),
                    () if has("podman") => of("podman", path.clone(), Api::Docker),
                    () => of("docker", path.clone(), Api::Docker),
                }
            })
            .collect(),
        Sockets::Auto => {
            let mut found: Vec<Runtime> = Vec::new();
            for place in PLACES {
                let socket = candidates(place.path, host).into_iter().find_map(|p| socket(&p));
                if let Some(socket) = socket
                    && found.iter().all(|r| r.socket != socket)
                {
                    found.push(of(place.runtime, socket, place.api));
                }
            }
            found
        }
    }
}

/// Adds the runtimes whose sockets have appeared; those known keep what is known of them.
pub fn find_more(known: &mut Vec<Runtime>, sockets: &Sockets, host: &HostRoots) {
    let found = find(sockets, host);
    let more: Vec<_> =
        found.into_iter().filter(|f| known.iter().all(|k| k.socket != f.socket)).collect();
    known.extend(more);
}

/// A socket may be mounted at its own path even where `/proc` is not.
fn candidates(path: &str, host: &HostRoots) -> Vec<PathBuf> {
    let mut paths = vec![PathBuf::from(path)];
    paths.extend(on_host(path, host));
    paths.dedup();
    paths
}

/// The socket itself, links resolved: `/var/run` mostly is `/run`.
fn socket(path: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::FileTypeExt;
    let path = path.canonicalize().ok()?;
    path.metadata().ok()?.file_type().is_socket().then_some(path)
}

/// What asking about a container came to.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// It is known.
    Known(Box<ContainerMeta>),
    /// No runtime that answered knows it.
    Unknown,
    /// No runtime answered.
    Nobody,
}

/// Asks the runtimes about a container, one after the other.
pub async fn ask(runtimes: &mut [Runtime], id: &str) -> Answer {
    let mut answer = Answer::Nobody;
    for runtime in runtimes {
        let asked = match runtime.api {
            Api::Docker => {
                let peer = Peer::Unix(runtime.socket.clone());
                docker::inspect(&peer, id).await.map_err(|e| e.to_string())
            }
            Api::Cri => cri::find(&runtime.socket, id)
                .await
                .map_err(|e| format!("{:?}: {}", e.code(), e.message())),
        };
        match asked {
            Ok(found) => {
                if std::mem::take(&mut runtime.failing) {
                    info!(socket = %runtime.socket.display(), "{} answers again", runtime.name);
                }
                answer = Answer::Unknown;
                if let Some(mut meta) = found {
                    meta.runtime = Some(runtime.name);
                    return Answer::Known(Box::new(meta));
                }
            }
            Err(e) => {
                if !std::mem::replace(&mut runtime.failing, true) {
                    warn!(
                        "{} does not tell container names: {e}; ids from cgroup paths stay",
                        runtime.name
                    );
                }
            }
        }
    }
    answer
}

/// Reads the labels that Kubernetes' runtimes put on containers.
fn pod_of_labels<'a>(label: impl Fn(&str) -> Option<&'a str>) -> super::knowledge::PodRef {
    let get = |name: &str| label(name).filter(|v| !v.is_empty()).map(str::to_owned);
    super::knowledge::PodRef {
        uid: get("io.kubernetes.pod.uid"),
        name: get("io.kubernetes.pod.name"),
        namespace: get("io.kubernetes.pod.namespace"),
        container: get("io.kubernetes.container.name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_a_list_are_known_by_their_names() {
        let list = ["/a/podman.sock", "/b/docker.sock", "/c/containerd.sock", "/d/crio.sock", "/e"];
        let sockets = Sockets::List(list.iter().map(PathBuf::from).collect());
        let found = find(&sockets, &HostRoots::default());
        let names: Vec<_> = found.iter().map(|r| (r.name, r.api)).collect();
        let (docker, cri) = (Api::Docker, Api::Cri);
        let expected = [
            ("podman", docker),
            ("docker", docker),
            ("containerd", cri),
            ("cri-o", cri),
            ("docker", docker),
        ];
        assert_eq!(names, expected);
        assert!(find(&Sockets::List(vec![]), &HostRoots::default()).is_empty());
    }

    #[test]
    fn sockets_of_a_mounted_host_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("1/root/run/podman");
        std::fs::create_dir_all(&run).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(run.join("podman.sock")).unwrap();
        let host = HostRoots { procfs: dir.path().to_owned(), ..HostRoots::default() };
        let found = find(&Sockets::Auto, &host);
        assert!(
            found
                .iter()
                .any(|r| r.name == "podman"
                    && r.socket.starts_with(dir.path().canonicalize().unwrap())),
            "{found:?}"
        );
    }

    #[tokio::test]
    async fn nobody_there() {
        let dir = tempfile::tempdir().unwrap();
        let sockets =
            Sockets::List(vec![dir.path().join("docker.sock"), dir.path().join("crio.sock")]);
        let mut runtimes = find(&sockets, &HostRoots::default());
        assert_eq!(ask(&mut runtimes, "x").await, Answer::Nobody);
        assert!(runtimes.iter().all(|r| r.failing));
        assert_eq!(ask(&mut [], "x").await, Answer::Nobody);
    }
}
