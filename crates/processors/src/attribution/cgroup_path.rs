//! What a cgroup path says by itself: container, runtime, pod, systemd unit.
//!
//! One pass over the path's components from the root down, and the deepest statement wins: in
//! `kind`, k3s or docker-in-docker the outer id is the node, the inner one the container. Monitors
//! (`conmon`) are not the container they watch. Nothing is allocated: every fact borrows from the
//! path, and a pod's uid, which systemd writes with `_` for `-`, is kept in place.

use std::fmt;

/// What a path says. Absent is `None`: no error, no guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupFacts<'a> {
    /// Id of the innermost container (for LXC its name).
    pub container_id: Option<&'a str>,
    /// The runtime, where the path names it.
    pub runtime: Option<&'static str>,
    /// Uid of the innermost pod, with dashes.
    pub pod_uid: Option<PodUid>,
    /// The innermost systemd unit; only outside containers and pods.
    pub unit: Option<&'a str>,
}

/// Reads a path as `/proc/<pid>/cgroup` shows it (or as the tree of directories gives it).
pub fn parse(path: &str) -> CgroupFacts<'_> {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let mut facts = CgroupFacts::default();
    let mut parent = "";
    let mut inside_user_manager = false;
    for component in path.split('/').filter(|c| !c.is_empty()) {
        if let Some(uid) = pod_uid(component) {
            // A container above a pod is the pod's node.
            facts.container_id = None;
            facts.runtime = None;
            facts.pod_uid = Some(uid);
        }
        if let Some((id, runtime)) = container(component, parent) {
            facts.container_id = Some(id);
            facts.runtime = runtime;
        } else if is_unit(component) && !(inside_user_manager && component == "init.scope") {
            facts.unit = Some(component);
        }
        inside_user_manager |= component.starts_with("user@") && component.ends_with(".service");
        parent = component;
    }
    if facts.container_id.is_some() || facts.pod_uid.is_some() {
        facts.unit = None;
    }
    facts
}

/// A container's id and runtime, where `component` is the directory of a container.
fn container<'a>(component: &'a str, parent: &str) -> Option<(&'a str, Option<&'static str>)> {
    if let Some(name) = component.strip_prefix("lxc.payload.").filter(|n| !n.is_empty()) {
        return Some((name, Some("lxc")));
    }
    // `slice:prefix:name`: how runc's systemd form looks where systemd does not manage it.
    if let Some((rest, name)) = component.rsplit_once(':') {
        let (_, prefix) = rest.split_once(':')?;
        return (!name.is_empty()).then(|| (name, runtime_of(prefix)));
    }
    let stem = component.strip_suffix(".scope").unwrap_or(component);
    if let Some((prefix, id)) = split_hex_id(stem) {
        let prefix = prefix.strip_suffix('-').unwrap_or(prefix);
        if prefix.is_empty() {
            return Some((id, runtime_of_parent(parent)));
        }
        // Slices and other units may carry an id as well (`machine-libpod_pod_<id>.slice`).
        let bare = stem.len() > prefix.len() + id.len() && !component.ends_with(".slice");
        return (bare && !is_monitor(prefix)).then(|| (id, runtime_of(prefix)));
    }
    if parent == "lxc" {
        return Some((component, Some("lxc")));
    }
    is_fargate_id(component).then_some((component, None))
}

/// Splits 64 hexadecimal digits off the end.
fn split_hex_id(stem: &str) -> Option<(&str, &str)> {
    let at = stem.len().checked_sub(64)?;
    let (prefix, id) = (stem.get(..at)?, stem.get(at..)?);
    is_lower_hex(id).then_some((prefix, id))
}

fn is_lower_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_monitor(prefix: &str) -> bool {
    prefix == "conmon" || prefix.ends_with("-conmon")
}

fn runtime_of(prefix: &str) -> Option<&'static str> {
    Some(match prefix {
        "docker" => "docker",
        "libpod" | "libpod-payload" => "podman",
        "crio" => "cri-o",
        "cri-containerd" | "containerd" | "nerdctl" => "containerd",
        _ => return None,
    })
}

/// The runtime by the directory above a bare id. Under a pod it stays unknown: every runtime's
/// cgroupfs driver looks the same there.
fn runtime_of_parent(parent: &str) -> Option<&'static str> {
    Some(match parent {
        "docker" => "docker",
        "libpod" | "libpod_parent" => "podman",
        "k8s.io" => "containerd",
        _ => return None,
    })
}

/// Fargate: 32 hexadecimal digits of the task, a dash, decimal digits of the container.
fn is_fargate_id(component: &str) -> bool {
    component.split_once('-').is_some_and(|(task, container)| {
        task.len() == 32
            && is_lower_hex(task)
            && !container.is_empty()
            && container.bytes().all(|b| b.is_ascii_digit())
    })
}

fn is_unit(component: &str) -> bool {
    [".service", ".scope", ".socket", ".mount", ".swap"]
        .iter()
        .any(|suffix| component.strip_suffix(suffix).is_some_and(|stem| !stem.is_empty()))
}

/// A pod's uid: 36 characters, or 32 hexadecimal digits for a static pod.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PodUid {
    text: [u8; 36],
    len: u8,
}

impl PodUid {
    /// As text, with dashes.
    pub fn as_str(&self) -> &str {
        // Only ASCII is ever stored.
        std::str::from_utf8(&self.text[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The uid in `pod<uid>`, `kubepods-<qos>-pod<uid>.slice` and the `slice:prefix:name` form.
fn pod_uid(component: &str) -> Option<PodUid> {
    let slice = component.split(':').next()?;
    let slice = slice.strip_suffix(".slice").unwrap_or(slice);
    // A uid is hexadecimal, so the last `pod` is the one before it.
    let at = slice.rfind("pod")?;
    let (before, uid) = (&slice[..at], &slice[at + 3..]);
    if !before.is_empty() && !before.ends_with('-') {
        return None;
    }
    let plain = uid.len() == 32 && is_lower_hex(uid);
    let dashed = uid.len() == 36
        && uid.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => matches!(b, b'-' | b'_'),
            _ => b.is_ascii_hexdigit(),
        });
    if !plain && !dashed {
        return None;
    }
    let mut text = [0; 36];
    for (to, from) in text.iter_mut().zip(uid.bytes()) {
        *to = if from == b'_' { b'-' } else { from };
    }
    Some(PodUid { text, len: u8::try_from(uid.len()).ok()? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Case {
        cgroup: String,
        #[serde(rename = "container.id")]
        container_id: Option<String>,
        #[serde(rename = "container.runtime.name")]
        runtime: Option<String>,
        #[serde(rename = "k8s.pod.uid")]
        pod_uid: Option<String>,
        #[serde(rename = "systemd.unit")]
        unit: Option<String>,
        note: String,
    }

    #[test]
    fn layouts_seen_in_the_field() {
        let mut cases = 0;
        for line in include_str!("../../tests/data/cgroup-paths.jsonl").lines() {
            let case: Case = serde_json::from_str(line).unwrap();
            let got = parse(&case.cgroup);
            let note = &case.note;
            assert_eq!(got.container_id, case.container_id.as_deref(), "container.id, {note}");
            assert_eq!(got.runtime, case.runtime.as_deref(), "runtime, {note}");
            let uid = got.pod_uid.as_ref().map(PodUid::as_str);
            assert_eq!(uid, case.pod_uid.as_deref(), "pod uid, {note}");
            assert_eq!(got.unit, case.unit.as_deref(), "systemd.unit, {note}");
            cases += 1;
        }
        assert!(cases >= 22, "the table is short: {cases}");
    }

    const ID: &str = "cd18fc9fb6494384932af3bda6fe8102c0fa7a26774e22af3993a69e2ca79565";
    const OUTER: &str = "0018fc9fb6494384932af3bda6fe8102c0fa7a26774e22af3993a69e2ca79500";
    const POD: &str = "b309a95b-543c-b5dc-ef75-981a3b5cfc93";

    #[track_caller]
    fn check(
        path: &str,
        id: Option<&str>,
        runtime: Option<&str>,
        pod: Option<&str>,
        unit: Option<&str>,
    ) {
        let got = parse(path);
        let uid = got.pod_uid.as_ref().map(PodUid::as_str);
        assert_eq!(
            (got.container_id, got.runtime, uid, got.unit),
            (id, runtime, pod, unit),
            "{path}"
        );
    }

    #[test]
    fn nested_and_unusual_layouts() {
        let id = Some(ID);
        check(&format!("/docker/{ID}/init.scope"), id, Some("docker"), None, None);
        check(&format!("/docker/{OUTER}/docker/{ID}"), id, Some("docker"), None, None);
        check(&format!("/libpod_parent/libpod-{ID}"), id, Some("podman"), None, None);
        check(&format!("/a.service/libpod-payload-{ID}"), id, Some("podman"), None, None);
        check(&format!("/libpod_parent/conmon-{ID}"), None, None, None, None);
        check(&format!("/default/{ID}"), id, None, None, None);
        check(
            &format!("/kubepods/pod{POD}/{OUTER}/docker/{ID}"),
            id,
            Some("docker"),
            Some(POD),
            None,
        );
        // A pod's own processes in `kind` are not the node's.
        check(&format!("/docker/{OUTER}/kubelet/kubepods/pod{POD}"), None, None, Some(POD), None);
        // A monitor on a node that is itself a container belongs to the node.
        check(
            &format!("/docker/{OUTER}/a/crio-conmon-{ID}.scope"),
            Some(OUTER),
            Some("docker"),
            None,
            None,
        );
        check(&format!("/machine.slice/machine-libpod_pod_{ID}.slice"), None, None, None, None);
        let hash = "0f23c1a4b5d6e7f8091a2b3c4d5e6f70";
        check(&format!("/kubepods/burstable/pod{hash}/{ID}"), id, None, Some(hash), None);
        check("/lxc/web1", Some("web1"), Some("lxc"), None, None);
        check("/lxc.monitor.web1", None, None, None, None);
        let user = "/user.slice/user-1000.slice/user@1000.service";
        check(&format!("{user}/app.slice/app-a.scope"), None, None, None, Some("app-a.scope"));
        check(&format!("{user}/init.scope"), None, None, None, Some("user@1000.service"));
        check("/../..", None, None, None, None);
        check("", None, None, None, None);
        check("/kubepods.slice/kubepods-besteffort.slice", None, None, None, None);
        check("/a:b", None, None, None, None);
        check("/a:b:", None, None, None, None);
    }

    proptest! {
        #[test]
        fn never_panics_and_borrows_from_the_path(path in "[/a-f0-9.:_podlxcrisekub@é-]{0,200}") {
            let facts = parse(&path);
            for part in [facts.container_id, facts.unit].into_iter().flatten() {
                prop_assert!(!part.is_empty() && path.contains(part) && !part.contains('/'));
            }
            prop_assert!(facts.unit.is_none() || facts.container_id.is_none());
        }

        #[test]
        fn the_deepest_id_wins(outer in "[0-9a-f]{64}", inner in "[0-9a-f]{64}", tail in "(/[a-z]{1,8}){0,3}") {
            let path = format!("/docker/{outer}/system.slice/docker-{inner}.scope{tail}");
            prop_assert_eq!(parse(&path).container_id, Some(inner.as_str()));
        }
    }
}
