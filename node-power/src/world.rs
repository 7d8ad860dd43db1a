//! All NodePowers, and which of them is due. Watches write here and wake the loop; nothing here is decided on but limits.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use andreas_api::node_power::{NodePowerStatus, PowerState};
use andreas_api::resource_like;
use andreas_api::slim::metadata;
use andreas_api::{NodePower, key_of};
use andreas_runtime::watch::{Index, ObjectKey};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::conditions;
use crate::driver::address;
use crate::memory::Memory;

/// Machines that are worked on at once; one request each.
const AT_ONCE: usize = 8;
/// Objects that are read.
const MAX_OBJECTS: usize = 4096;
/// As many starts in a row that failed, or power switches that cannot be reached, stop all from going off.
const BREAKER: usize = 3;

/// That a Node changed; what it says is read when it counts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeMark {
    /// Its name.
    #[serde(deserialize_with = "metadata")]
    pub metadata: ObjectMeta,
}
resource_like!(NodeMark, Node);

struct Entry {
    object: NodePower,
    memory: Memory,
    due: Instant,
    running: bool,
}

/// All NodePowers.
#[derive(Default)]
pub struct World {
    entries: HashMap<String, Entry>,
    /// Woken when something may be due.
    pub changed: Arc<Notify>,
}

/// One machine that is due: worked on until [`World::done`].
pub struct Task {
    /// The object as it was last seen.
    pub object: NodePower,
    /// What this process remembers.
    pub memory: Memory,
    /// Another NodePower that names the same machine.
    pub double: Option<String>,
}

impl World {
    /// The next machine that is due and whose server is idle, or how long to wait for one.
    pub fn take_due(&mut self) -> Result<Task, Duration> {
        let running: Vec<&Entry> = self.entries.values().filter(|entry| entry.running).collect();
        let long = Duration::from_secs(60);
        if running.len() >= AT_ONCE {
            return Err(long);
        }
        let server = |entry: &Entry| address(&key_of(&entry.object).name, &entry.object.spec).0;
        let busy: HashSet<String> = running.into_iter().map(server).collect();
        let waiting =
            self.entries.iter().filter(|(_, entry)| !entry.running && !busy.contains(&server(entry)));
        let Some((name, due)) =
            waiting.map(|(name, entry)| (name.clone(), entry.due)).min_by_key(|(_, due)| *due)
        else {
            return Err(long);
        };
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            return Err(wait.min(long));
        }
        let double = self.double(&name);
        let entry = self.entries.get_mut(&name).expect("its key was just read");
        entry.running = true;
        // A change while it runs makes it due again.
        entry.due = Instant::now() + Duration::from_secs(3600);
        Ok(Task { object: entry.object.clone(), memory: entry.memory.clone(), double })
    }

    fn double(&self, name: &str) -> Option<String> {
        let (server, machine) = address(name, &self.entries.get(name)?.object.spec);
        let same = |(other, entry): &(&String, &Entry)| {
            let (at, named) = address(other, &entry.object.spec);
            // Without a name it is the only one there.
            other.as_str() != name
                && at == server
                && (named == machine || named.is_empty() || machine.is_empty())
        };
        self.entries.iter().find(same).map(|(other, _)| other.clone())
    }

    /// Ends a task; the machine is due again after this time, or at once if it changed meanwhile.
    pub fn done(&mut self, name: &str, task: Task, after: Duration) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.running = false;
            // What was seen of the switch that an older spec names proves nothing.
            if is_of_one_spec(&entry.object, &task.object) {
                entry.memory = task.memory;
            }
            entry.due = entry.due.min(Instant::now() + after);
        }
        self.changed.notify_one();
    }

    /// How many other machines are in this state.
    pub fn others_in(&self, name: &str, state: PowerState) -> usize {
        let others = self.statuses().filter(|(other, _)| *other != name);
        others.filter(|(_, status)| status.state == state).count()
    }

    /// Whether so much fails that nothing may go off.
    pub fn is_broken(&self) -> bool {
        // One dead machine is not enough.
        let failed = |status: &NodePowerStatus| status.failed_starts.max(0).unsigned_abs() as usize;
        let failed: usize = self.statuses().map(|(_, status)| failed(status).min(BREAKER - 1)).sum();
        let unreachable = |(_, status): &(&str, &NodePowerStatus)| {
            conditions::is_false(&status.conditions, conditions::REACHABLE)
        };
        failed >= BREAKER || self.statuses().filter(unreachable).count() >= BREAKER
    }

    fn statuses(&self) -> impl Iterator<Item = (&str, &NodePowerStatus)> {
        self.entries.iter().filter_map(|(name, entry)| Some((name.as_str(), entry.object.status.as_ref()?)))
    }

    /// The status that is about to be written, so that limits hold while several machines are decided on.
    pub fn expect(&mut self, name: &str, status: &NodePowerStatus) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.object.status = Some(status.clone());
        }
    }

    /// The object after a write that succeeded, or as it was. What a watch has shown since is newer.
    pub fn settle(&mut self, name: &str, read: &NodePower, object: NodePower) {
        if let Some(entry) = self.entries.get_mut(name)
            && entry.object.metadata.resource_version == read.metadata.resource_version
        {
            entry.object = object;
        }
    }

    fn touch(&mut self, name: &str) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.due = Instant::now();
            self.changed.notify_one();
        }
    }
}

/// Whether two states of an object name the same power switch.
fn is_of_one_spec(a: &NodePower, b: &NodePower) -> bool {
    a.metadata.uid == b.metadata.uid && a.metadata.generation == b.metadata.generation
}

impl Index<NodePower> for World {
    fn apply(&mut self, object: NodePower) {
        let name = key_of(&object).name;
        if let Some(entry) = self.entries.get_mut(&name) {
            // Our own writes come back.
            let same = entry.object.metadata.resource_version == object.metadata.resource_version;
            if !is_of_one_spec(&entry.object, &object) {
                entry.memory = Memory::default();
            }
            entry.object = object;
            if !same {
                self.touch(&name);
            }
            return;
        }
        if self.entries.len() >= MAX_OBJECTS {
            tracing::error!(name, "more NodePowers than are read: this one is ignored");
            return;
        }
        let entry = Entry { object, memory: Memory::default(), due: Instant::now(), running: false };
        self.entries.insert(name, entry);
        self.changed.notify_one();
    }

    fn delete(&mut self, key: &ObjectKey, _: Option<NodePower>) {
        self.entries.remove(&key.name);
    }

    fn reset(&mut self, present: &HashSet<ObjectKey>) {
        let names: HashSet<&str> = present.iter().map(|key| key.name.as_str()).collect();
        self.entries.retain(|name, _| names.contains(name.as_str()));
    }
}

impl Index<NodeMark> for World {
    fn apply(&mut self, node: NodeMark) {
        self.touch(&key_of(&node).name);
    }

    fn delete(&mut self, key: &ObjectKey, _: Option<NodeMark>) {
        self.touch(&key.name);
    }

    fn reset(&mut self, _: &HashSet<ObjectKey>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, endpoint: &str, system: Option<&str>, version: &str) -> NodePower {
        let redfish = json!({"endpoint": endpoint, "system": system, "credentials": "bmc"});
        serde_json::from_value(json!({
            "apiVersion": "andreas.dev/v1alpha1", "kind": "NodePower",
            "metadata": {"name": name, "uid": name, "generation": 1, "resourceVersion": version},
            "spec": {"redfish": redfish},
        }))
        .unwrap()
    }

    fn name(task: &Task) -> String {
        key_of(&task.object).name
    }

    #[tokio::test]
    async fn one_request_per_server_and_both_of_two_names_for_a_machine_are_told() {
        let mut world = World::default();
        for (node, endpoint, system) in
            [("a", "https://one", Some("x")), ("b", "https://ONE", Some("y")), ("c", "https://two", None)]
        {
            world.apply(object(node, endpoint, system, "1"));
        }
        let tasks = [world.take_due().ok().unwrap(), world.take_due().ok().unwrap()];
        assert!(world.take_due().is_err(), "the third one's server is busy, or all are done");
        assert!(tasks.iter().all(|task| task.double.is_none()));
        for task in tasks {
            world.done(&name(&task), task, Duration::from_secs(60));
        }
        world.apply(object("d", "https://two", Some("z"), "1"));
        world.touch("c");
        let mut doubles: Vec<_> = std::iter::from_fn(|| world.take_due().ok())
            .filter_map(|task| Some((name(&task), task.double?)))
            .collect();
        doubles.extend(world.double("d").map(|other| ("d".to_owned(), other)));
        assert!(doubles.contains(&("c".into(), "d".into())) || doubles.contains(&("d".into(), "c".into())));
    }

    #[tokio::test]
    async fn what_a_watch_has_shown_during_a_write_stays() {
        let mut world = World::default();
        let read = object("a", "https://one", None, "1");
        world.apply(read.clone());
        let task = world.take_due().ok().unwrap();
        world.apply(object("a", "https://one", None, "3"));
        world.settle("a", &read, object("a", "https://one", None, "2"));
        world.done("a", task, Duration::from_secs(60));
        // It changed, so it is due.
        let task = world.take_due().ok().unwrap();
        assert_eq!(task.object.metadata.resource_version.as_deref(), Some("3"));
    }
}
