//! Objects that each rule of the definitions accepts and refuses, from `fixtures/rules.yaml`.

use std::collections::BTreeMap;

use andreas_api::crd::rules::{self, Rule};
use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::api::merge;

const FILE: &str = include_str!("../fixtures/rules.yaml");

#[derive(Deserialize)]
struct Examples {
    smallest: BTreeMap<String, Value>,
    rules: BTreeMap<String, BTreeMap<String, Vec<Pair>>>,
}

#[derive(Deserialize)]
struct Pair {
    accepted: Value,
    rejected: Value,
}

/// An object, and the change of it that is judged; without one the creation is.
pub struct Example {
    /// What is created.
    pub object: Value,
    /// What is then changed.
    pub change: Option<Value>,
}

/// A rule with what it accepts and what it refuses.
pub struct RuleExamples {
    /// The rule.
    pub rule: &'static Rule,
    /// Holds.
    pub accepted: Example,
    /// Does not hold.
    pub rejected: Example,
}

fn read() -> Result<Examples> {
    serde_saphyr::from_str(FILE).context("rules.yaml")
}

/// The smallest valid object of a kind.
///
/// # Errors
/// When the file has none.
pub fn smallest(kind: &str) -> Result<Value> {
    read()?.smallest.remove(kind).with_context(|| format!("no smallest {kind}"))
}

fn example(smallest: &Value, patch: Value) -> Result<Example> {
    let (created, change) = match patch {
        Value::Array(steps) => {
            let [created, change] = <[Value; 2]>::try_from(steps).ok().context("two steps")?;
            (created, Some(change))
        }
        created => (created, None),
    };
    let mut object = smallest.clone();
    merge(&mut object, &created);
    Ok(Example { object, change })
}

/// Every rule with its examples.
///
/// # Errors
/// When a rule has none, or examples have no rule.
pub fn all() -> Result<Vec<RuleExamples>> {
    let Examples { smallest, mut rules } = read()?;
    let mut all = Vec::new();
    for rule in rules::all() {
        let of_place = rules.get_mut(rule.kind).and_then(|places| places.get_mut(rule.path));
        let pairs = of_place.filter(|pairs| !pairs.is_empty());
        let pair = pairs.with_context(|| format!("no example of {} {}", rule.kind, rule.path))?.remove(0);
        let smallest = smallest.get(rule.kind).context("a smallest object")?;
        let (accepted, rejected) = (example(smallest, pair.accepted)?, example(smallest, pair.rejected)?);
        all.push(RuleExamples { rule, accepted, rejected });
    }
    let places = rules.iter().flat_map(|(kind, places)| places.iter().map(move |place| (kind, place)));
    for (kind, (place, pairs)) in places {
        ensure!(pairs.is_empty(), "examples without a rule: {kind} {place}");
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_rule_has_its_examples() {
        assert!(super::all().unwrap().len() > 40);
    }
}
