//! One kind of object by name, never older than our own last write.
//!
//! A watch may be behind what we wrote ourselves. So the answer to every write of ours goes in here as well
//! ([`Seen::Written`]), and whatever is older than what is held is ignored. Resource versions are compared as integers,
//! which Kubernetes 1.35 and later promise (KEP-5504).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_runtime::watch::ObjectKey;
use kube::Resource;
use kube::api::ObjectMeta;

/// How long the version of a deleted object is remembered, so that a late answer to a write does not bring it back.
const GRAVE: Duration = Duration::from_secs(600);

/// Where an object's state comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A list or a watch.
    Watched,
    /// The API server's answer to a write or a live read of ours.
    Written,
}

/// What an [`Store::apply`] changed.
#[derive(Debug)]
pub enum Change<T> {
    /// Not held before (or another object of this name was: `replaced`).
    New {
        /// The object of the same name, with another UID, that was held.
        replaced: Option<Arc<T>>,
    },
    /// A newer state.
    Newer {
        /// The state before.
        old: Arc<T>,
    },
    /// Nothing: older than, or the same as, what is held.
    Nothing,
}

struct Entry<T> {
    object: Arc<T>,
    version: u64,
    /// Set while only our own write has shown it: a list that began before the write does not hold it.
    unconfirmed: Option<Instant>,
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self { object: Arc::clone(&self.object), version: self.version, unconfirmed: self.unconfirmed }
    }
}

/// All objects of a kind that are known. A clone shares the objects.
pub struct Store<T> {
    items: BTreeMap<ObjectKey, Entry<T>>,
    tombstones: HashMap<ObjectKey, (u64, Instant)>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), tombstones: HashMap::new() }
    }
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self { items: self.items.clone(), tombstones: HashMap::new() }
    }
}

/// The resource version as a number; 0 where it is not one.
pub fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl<T: Resource<DynamicType = ()>> Store<T> {
    /// The object is there, in this state.
    pub fn apply(&mut self, object: T, seen: Seen) -> Change<T> {
        let key = ObjectKey::of(&object);
        let version = version(object.meta());
        if self.tombstones.get(&key).is_some_and(|(grave, _)| version != 0 && version <= *grave) {
            return Change::Nothing;
        }
        let unconfirmed = (seen == Seen::Written).then(Instant::now);
        match self.items.get_mut(&key) {
            None => {
                self.items.insert(key, Entry { object: Arc::new(object), version, unconfirmed });
                Change::New { replaced: None }
            }
            Some(entry) => {
                if version != 0 && version <= entry.version {
                    if seen == Seen::Watched && version == entry.version {
                        entry.unconfirmed = None;
                    }
                    return Change::Nothing;
                }
                let same = entry.object.meta().uid == object.meta().uid;
                let unconfirmed = match seen {
                    Seen::Watched => None,
                    // Known to lists already: a later list without it means that it is gone.
                    Seen::Written if same && entry.unconfirmed.is_none() => None,
                    Seen::Written => unconfirmed,
                };
                let old = std::mem::replace(&mut entry.object, Arc::new(object));
                entry.version = version;
                entry.unconfirmed = unconfirmed;
                if same { Change::Newer { old } } else { Change::New { replaced: Some(old) } }
            }
        }
    }

    /// The server went back to an older state: what it says from now on replaces what is held, whatever its version.
    pub fn rewound(&mut self) {
        self.tombstones.clear();
        for entry in self.items.values_mut() {
            (entry.version, entry.unconfirmed) = (0, None);
        }
    }

    /// The version that is held; 0 where there is none.
    pub fn version(&self, key: &ObjectKey) -> u64 {
        self.items.get(key).map_or(0, |entry| entry.version)
    }

    /// The object is gone; its last state where that is known. Says what was held.
    pub fn delete(&mut self, key: &ObjectKey, last: Option<&ObjectMeta>) -> Option<Arc<T>> {
        let gone = last.map_or(0, version);
        let entry = self.items.get(key)?;
        if gone != 0 && gone < entry.version && entry.unconfirmed.is_some() {
            return None; // A newer object of that name, made by ourselves.
        }
        let version = entry.version.max(gone);
        self.tombstones.retain(|_, (_, since)| since.elapsed() < GRAVE);
        self.tombstones.insert(key.clone(), (version, Instant::now()));
        self.items.remove(key).map(|entry| entry.object)
    }

    /// A complete list is in: what is not `present` and was not made by ourselves since is gone. Says what went.
    pub fn reset(&mut self, present: &HashSet<ObjectKey>) -> Vec<(ObjectKey, Arc<T>)> {
        let gone: Vec<ObjectKey> = self
            .items
            .iter()
            .filter(|(key, entry)| !present.contains(key) && entry.unconfirmed.is_none())
            .map(|(key, _)| key.clone())
            .collect();
        gone.into_iter().filter_map(|key| self.delete(&key, None).map(|object| (key, object))).collect()
    }

    /// What is held under a name.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.items.get(key).map(|entry| &entry.object)
    }

    /// All objects, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<T>)> {
        self.items.iter().map(|(key, entry)| (key, &entry.object))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Objects that only our own writes have shown, for longer than `age`: to be looked up live.
    pub fn unconfirmed(&self, age: Duration) -> Vec<ObjectKey> {
        let old = |entry: &Entry<T>| entry.unconfirmed.is_some_and(|since| since.elapsed() >= age);
        self.items.iter().filter(|(_, entry)| old(entry)).map(|(key, _)| key.clone()).collect()
    }

    /// A live read has shown the object, in the state held or an older one.
    pub fn confirm(&mut self, key: &ObjectKey) {
        if let Some(entry) = self.items.get_mut(key) {
            entry.unconfirmed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn object(name: &str, uid: &str, version: u64) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("team".into()),
                uid: Some(uid.into()),
                resource_version: Some(version.to_string()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        }
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey { namespace: "team".into(), name: name.into() }
    }

    fn held(store: &Store<ConfigMap>, name: &str) -> Option<String> {
        store.get(&key(name)).and_then(|object| object.metadata.resource_version.clone())
    }

    #[test]
    fn a_watch_behind_our_own_write_is_ignored() {
        let mut store = Store::default();
        store.apply(object("a", "1", 9), Seen::Watched);
        store.apply(object("a", "1", 100), Seen::Written);
        assert!(matches!(store.apply(object("a", "1", 99), Seen::Watched), Change::Nothing));
        assert_eq!(held(&store, "a").as_deref(), Some("100"));
        assert!(matches!(store.apply(object("a", "1", 101), Seen::Watched), Change::Newer { .. }));
    }

    #[test]
    fn a_list_that_began_before_our_create_does_not_remove_what_was_created() {
        let mut store = Store::default();
        store.apply(object("old", "1", 5), Seen::Watched);
        store.apply(object("made", "2", 100), Seen::Written);
        let gone = store.reset(&HashSet::from([key("other")]));
        assert_eq!(gone.iter().map(|(key, _)| key.name.as_str()).collect::<Vec<_>>(), ["old"]);
        assert_eq!(held(&store, "made").as_deref(), Some("100"));
        // Once a watch has shown it, a list without it means that it is gone.
        store.apply(object("made", "2", 100), Seen::Watched);
        assert_eq!(store.reset(&HashSet::new()).len(), 1);
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let mut store = Store::default();
        store.apply(object("a", "1", 10), Seen::Watched);
        store.delete(&key("a"), Some(&object("a", "1", 20).metadata));
        assert!(matches!(store.apply(object("a", "1", 15), Seen::Written), Change::Nothing));
        assert!(store.is_empty());
        // A new object of that name is another matter.
        assert!(matches!(store.apply(object("a", "2", 30), Seen::Watched), Change::New { replaced: None }));
    }

    #[test]
    fn the_deletion_of_a_predecessor_leaves_our_new_object_alone() {
        let mut store = Store::default();
        store.apply(object("a", "1", 10), Seen::Watched);
        store.apply(object("a", "2", 30), Seen::Written);
        assert!(store.delete(&key("a"), Some(&object("a", "1", 20).metadata)).is_none());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn a_list_of_a_restored_server_replaces_what_was_newer() {
        let mut store = Store::default();
        store.apply(object("kept", "1", 900), Seen::Watched);
        store.apply(object("lost", "2", 950), Seen::Written);
        store.apply(object("deleted", "3", 800), Seen::Watched);
        store.delete(&key("deleted"), Some(&object("deleted", "3", 990).metadata));
        store.rewound();
        assert!(matches!(store.apply(object("kept", "1", 300), Seen::Watched), Change::Newer { .. }));
        assert!(matches!(store.apply(object("deleted", "3", 200), Seen::Watched), Change::New { .. }));
        let gone = store.reset(&HashSet::from([key("kept"), key("deleted")]));
        assert_eq!(gone.iter().map(|(key, _)| key.name.as_str()).collect::<Vec<_>>(), ["lost"]);
        assert_eq!(held(&store, "kept").as_deref(), Some("300"));
        // From here on versions count again.
        assert!(matches!(store.apply(object("kept", "1", 299), Seen::Watched), Change::Nothing));
    }
}
