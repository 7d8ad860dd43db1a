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
    pub fn next(&mut self) -> Result<Task, Duration> {
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
        let own = address(name, &self.entries.get(name)?.object.spec);
        let same = |(other, entry): &(&String, &Entry)| {
            let other = other.as_str();
            other != name && address(other, &entry.object.spec) == own
        };
        self.entries.iter().find(same).map(|(other, _)| other.clone())
    }

    /// Ends a task; the machine is due again after this time, or at once if it changed meanwhile.
    pub fn done(&mut self, name: &str, task: Task, after: Duration) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.running = false;
            // What was seen of the switch that an older spec names proves nothing.
            if entry.object.metadata.generation == task.object.metadata.generation {
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
        let failed: usize =
            self.statuses().map(|(_, status)| status.failed_starts.max(0).unsigned_abs() as usize).sum();
        let unreachable = |(_, status): &(&str, &NodePowerStatus)| {
            conditions::is_false(&status.conditions, conditions::REACHABLE)
        };
        failed >= BREAKER || self.statuses().filter(unreachable).count() >= BREAKER
    }

    /// Machines by state.
    pub fn count(&self, state: PowerState) -> usize {
        self.others_in("", state)
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

    /// The object as it was written.
    pub fn written(&mut self, name: &str, object: NodePower) {
        if let Some(entry) = self.entries.get_mut(name) {
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

impl Index<NodePower> for World {
    fn apply(&mut self, object: NodePower) {
        let name = key_of(&object).name;
        if let Some(entry) = self.entries.get_mut(&name) {
            // Our own writes come back.
            let same = entry.object.metadata.resource_version == object.metadata.resource_version;
            if entry.object.metadata.generation != object.metadata.generation {
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
