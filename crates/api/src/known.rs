//! Reading what another release wrote. After an upgrade is taken back, objects hold values that this release does not know; one
//! such value must not make the object unreadable.
//!
//! A field with an unknown value counts as absent; an item of a list that cannot be read is left out. Nothing of it is written back:
//! patches hold only what this release changed.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Known<T> {
    Yes(T),
    No(IgnoredAny),
}

/// The value, or none where it is not known. For `#[serde(deserialize_with)]`.
///
/// # Errors
/// Where the text is no JSON.
pub(crate) fn optional<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(match Known::<Option<T>>::deserialize(deserializer)? {
        Known::Yes(value) => value,
        Known::No(_) => None,
    })
}

/// The value, or the default where it is not known.
///
/// # Errors
/// Where the text is no JSON.
pub(crate) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    optional(deserializer).map(Option::unwrap_or_default)
}

/// The items that can be read.
///
/// # Errors
/// Where the text is no JSON.
pub(crate) fn items<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let items = Option::<Vec<Known<T>>>::deserialize(deserializer)?.unwrap_or_default();
    let known = |item| match item {
        Known::Yes(item) => Some(item),
        Known::No(_) => None,
    };
    Ok(items.into_iter().filter_map(known).collect())
}
