//! Objects of one kind by name, never older than our own last write.
//!
//! A watch may be behind our own writes. So the response to every write is stored as well
//! ([`Origin::Written`]), and older states are ignored. Resource versions are compared as integers, which
//! Kubernetes 1.35 and later guarantee (KEP-5504).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use andreas_api::key_of;
use andreas_model::ObjectKey;
use kube::Resource;
use kube::api::ObjectMeta;

/// Lifetime of a tombstone: a late response to a write must not bring a deleted object back.
const TOMBSTONE_LIFETIME: Duration = Duration::from_secs(600);
/// Longest time from the state that a list shows to its end.
const OLDEST_LIST: Duration = TOMBSTONE_LIFETIME;

/// Origin of an object's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A list or a watch.
    Watched,
    /// The response to our own write or live read.
    Written,
}

/// The effect of [`Store::apply`].
#[derive(Debug)]
pub enum Change<T> {
    /// Not known before, or another object of this name was: `replaced`.
    New {
        /// The known object of the same name with another UID.
        replaced: Option<Arc<T>>,
    },
    /// A newer state.
    Newer {
        /// The previous state.
        old: Arc<T>,
    },
    /// Ignored: older than or equal to the known state.
    Nothing,
}

struct Entry<T> {
    object: Arc<T>,
    version: u64,
    /// Set while only our own write has shown it: a list that began before the write does not contain it.
    unconfirmed: Option<Instant>,
}

impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        Self { object: Arc::clone(&self.object), version: self.version, unconfirmed: self.unconfirmed }
    }
}

/// All known objects of a kind. A clone shares the objects.
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

/// The resource version as a number; 0 if it is not one.
pub fn version(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl<T: Resource<DynamicType = ()>> Store<T> {
    /// Stores this state of an object.
    pub fn apply(&mut self, object: T, origin: Origin) -> Change<T> {
        let key = key_of(&object);
        let version = version(object.meta());
        if self
            .tombstones
            .get(&key)
            .is_some_and(|(deleted_version, _)| version != 0 && version <= *deleted_version)
        {
            return Change::Nothing;
        }
        let unconfirmed = (origin == Origin::Written).then(Instant::now);
        match self.items.get_mut(&key) {
            None => {
                self.items.insert(key, Entry { object: Arc::new(object), version, unconfirmed });
                Change::New { replaced: None }
            }
            Some(entry) => {
                if version != 0 && version <= entry.version {
                    if origin == Origin::Watched && version == entry.version {
                        entry.unconfirmed = None;
                    }
                    return Change::Nothing;
                }
                let same = entry.object.meta().uid == object.meta().uid;
                let unconfirmed = match origin {
                    Origin::Watched => None,
                    // Lists contain it already: a later list without it means that it was deleted.
                    Origin::Written if same && entry.unconfirmed.is_none() => None,
                    Origin::Written => unconfirmed,
                };
                let old = std::mem::replace(&mut entry.object, Arc::new(object));
                entry.version = version;
                entry.unconfirmed = unconfirmed;
                if same { Change::Newer { old } } else { Change::New { replaced: Some(old) } }
            }
        }
    }

    /// Changes what is kept of an object, in the same state.
    pub fn change(&mut self, key: &ObjectKey, change: impl FnOnce(&mut T))
    where
        T: Clone,
    {
        if let Some(entry) = self.items.get_mut(key) {
            change(Arc::make_mut(&mut entry.object));
        }
    }

    /// The server went back to an older state: new states replace the known ones whatever their version.
    pub fn rewound(&mut self) {
        self.tombstones.clear();
        for entry in self.items.values_mut() {
            (entry.version, entry.unconfirmed) = (0, None);
        }
    }

    /// The known version; 0 if absent.
    pub fn version(&self, key: &ObjectKey) -> u64 {
        self.items.get(key).map_or(0, |entry| entry.version)
    }

    /// Removes a deleted object, given its last state if known. Returns the state that was stored.
    pub fn delete(&mut self, key: &ObjectKey, last: Option<&ObjectMeta>) -> Option<Arc<T>> {
        let gone = last.map_or(0, version);
        let entry = self.items.get(key)?;
        if gone != 0 && gone < entry.version && entry.unconfirmed.is_some() {
            return None; // A newer object of that name, made by ourselves.
        }
        let version = entry.version.max(gone);
        self.tombstones.retain(|_, (_, since)| since.elapsed() < TOMBSTONE_LIFETIME);
        self.tombstones.insert(key.clone(), (version, Instant::now()));
        self.items.remove(key).map(|entry| entry.object)
    }

    /// Applies a complete list: removes what is not `present` and was not created by us since. Returns the
    /// removed objects. No list is older than [`OLDEST_LIST`]: what was seen before, by a write or a live read, is gone.
    pub fn reset(&mut self, present: &HashSet<ObjectKey>) -> Vec<(ObjectKey, Arc<T>)> {
        let newer = |entry: &Entry<T>| entry.unconfirmed.is_some_and(|since| since.elapsed() < OLDEST_LIST);
        let gone: Vec<ObjectKey> = self
            .items
            .iter()
            .filter(|(key, entry)| !present.contains(key) && !newer(entry))
            .map(|(key, _)| key.clone())
            .collect();
        gone.into_iter().filter_map(|key| self.delete(&key, None).map(|object| (key, object))).collect()
    }

    /// The object with this name.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.items.get(key).map(|entry| &entry.object)
    }

    /// All objects, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<T>)> {
        self.items.iter().map(|(key, entry)| (key, &entry.object))
    }

    /// The objects of a namespace, by name.
    pub fn in_namespace<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<T>)> {
        let first = ObjectKey { namespace: namespace.to_owned(), name: String::new() };
        let from = self.items.range(first..).take_while(move |(key, _)| key.namespace == namespace);
        from.map(|(key, entry)| (key, &entry.object))
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Objects shown only by our own writes for longer than `age`: to be read live.
    pub fn unconfirmed(&self, age: Duration) -> Vec<ObjectKey> {
        let old = |entry: &Entry<T>| entry.unconfirmed.is_some_and(|since| since.elapsed() >= age);
        self.items.iter().filter(|(_, entry)| old(entry)).map(|(key, _)| key.clone()).collect()
    }

    /// A live read has shown the object in the known or an older state.
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

    use crate::testing::key;

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

    fn held(store: &Store<ConfigMap>, name: &str) -> Option<String> {
        store.get(&key(name)).and_then(|object| object.metadata.resource_version.clone())
    }

    #[test]
    fn a_watch_behind_our_own_write_is_ignored() {
        let mut store = Store::default();
        store.apply(object("a", "1", 9), Origin::Watched);
        store.apply(object("a", "1", 100), Origin::Written);
        assert!(matches!(store.apply(object("a", "1", 99), Origin::Watched), Change::Nothing));
        assert_eq!(held(&store, "a").as_deref(), Some("100"));
        assert!(matches!(store.apply(object("a", "1", 101), Origin::Watched), Change::Newer { .. }));
    }

    #[test]
    fn a_list_that_began_before_our_create_does_not_remove_what_was_created() {
        let mut store = Store::default();
        store.apply(object("old", "1", 5), Origin::Watched);
        store.apply(object("made", "2", 100), Origin::Written);
        let gone = store.reset(&HashSet::from([key("other")]));
        assert_eq!(gone.iter().map(|(key, _)| key.name.as_str()).collect::<Vec<_>>(), ["old"]);
        assert_eq!(held(&store, "made").as_deref(), Some("100"));
        // Once a watch has shown it, a list without it means that it was deleted.
        store.apply(object("made", "2", 100), Origin::Watched);
        assert_eq!(store.reset(&HashSet::new()).len(), 1);
    }

    #[test]
    fn what_only_a_live_read_has_shown_does_not_outlive_later_lists() {
        let mut store = Store::default();
        store.apply(object("read", "1", 5), Origin::Written);
        assert!(store.reset(&HashSet::new()).is_empty(), "the list may have begun before");
        if let Some(entry) = store.items.get_mut(&key("read")) {
            entry.unconfirmed = Instant::now().checked_sub(OLDEST_LIST);
        }
        assert_eq!(store.reset(&HashSet::new()).len(), 1);
    }

    #[test]
    fn a_late_answer_does_not_bring_a_deleted_object_back() {
        let mut store = Store::default();
        store.apply(object("a", "1", 10), Origin::Watched);
        store.delete(&key("a"), Some(&object("a", "1", 20).metadata));
        assert!(matches!(store.apply(object("a", "1", 15), Origin::Written), Change::Nothing));
        assert!(store.is_empty());
        // A new object of that name is unaffected.
        assert!(matches!(store.apply(object("a", "2", 30), Origin::Watched), Change::New { replaced: None }));
    }

    #[test]
    fn the_deletion_of_a_predecessor_leaves_our_new_object_alone() {
        let mut store = Store::default();
        store.apply(object("a", "1", 10), Origin::Watched);
        store.apply(object("a", "2", 30), Origin::Written);
        assert!(store.delete(&key("a"), Some(&object("a", "1", 20).metadata)).is_none());
        assert_eq!(store.len(), 1);
    }

    #[test]
    fn a_list_of_a_restored_server_replaces_what_was_newer() {
        let mut store = Store::default();
        store.apply(object("kept", "1", 900), Origin::Watched);
        store.apply(object("lost", "2", 950), Origin::Written);
        store.apply(object("deleted", "3", 800), Origin::Watched);
        store.delete(&key("deleted"), Some(&object("deleted", "3", 990).metadata));
        store.rewound();
        assert!(matches!(store.apply(object("kept", "1", 300), Origin::Watched), Change::Newer { .. }));
        assert!(matches!(store.apply(object("deleted", "3", 200), Origin::Watched), Change::New { .. }));
        let gone = store.reset(&HashSet::from([key("kept"), key("deleted")]));
        assert_eq!(gone.iter().map(|(key, _)| key.name.as_str()).collect::<Vec<_>>(), ["lost"]);
        assert_eq!(held(&store, "kept").as_deref(), Some("300"));
        // From here on versions count again.
        assert!(matches!(store.apply(object("kept", "1", 299), Origin::Watched), Change::Nothing));
    }
}
