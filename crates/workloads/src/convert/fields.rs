//! Fields of an object, each taken once. What is left at the end is lost, and is said to be.

use serde_json::{Map, Value};

use super::error::ConvertError;
use super::notes::Notes;

/// The fields of an object that have not been taken.
#[derive(Debug)]
pub struct Fields {
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// The fields of the object at `path`; null has none.
    ///
    /// # Errors
    /// When the value is neither an object nor null.
    pub fn new(path: impl Into<String>, value: Value) -> Result<Self, ConvertError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            Value::Null => Ok(Self { path, map: Map::new() }),
            _ => Err(ConvertError::field(path, "is not an object")),
        }
    }

    /// Path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// Whether it has no fields any more.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The value of a field; none where it is absent or null.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// A text.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ConvertError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ConvertError::field(self.path(name), "is not a text")),
        }
    }

    /// A whole number, also one that is written as text.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn number(&mut self, name: &str) -> Result<Option<i64>, ConvertError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
        number.map(Some).ok_or_else(|| ConvertError::field(self.path(name), "is not a whole number"))
    }

    /// True or false; absent is false.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn truth(&mut self, name: &str) -> Result<bool, ConvertError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(truth)) => Ok(truth),
            Some(_) => Err(ConvertError::field(self.path(name), "is neither true nor false")),
        }
    }

    /// An object; without fields where it is absent.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn object(&mut self, name: &str) -> Result<Self, ConvertError> {
        let value = self.take(name).unwrap_or(Value::Null);
        Self::new(self.path(name), value)
    }

    /// A list; empty where it is absent.
    ///
    /// # Errors
    /// Where it is something else.
    pub fn list(&mut self, name: &str) -> Result<Vec<Value>, ConvertError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => Ok(items),
            Some(_) => Err(ConvertError::field(self.path(name), "is not a list")),
        }
    }

    /// Fields that mean nothing for a TrainingJob.
    pub fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.map.remove(*name);
        }
    }

    /// Notes a field as lost where it is given.
    pub fn lost(&mut self, name: &str, notes: &mut Notes, text: &str) {
        if self.take(name).is_some() {
            notes.lost(self.path(name), text);
        }
    }

    /// Notes a field as changed where it is given.
    pub fn changed(&mut self, name: &str, notes: &mut Notes, text: &str) {
        if self.take(name).is_some() {
            notes.changed(self.path(name), text);
        }
    }

    /// Notes all that is left as lost.
    pub fn rest(self, notes: &mut Notes) {
        for (name, value) in &self.map {
            if !value.is_null() {
                notes.lost(self.path(name), "a TrainingJob has no such field");
            }
        }
    }

    /// What is left, as an object.
    pub fn into_value(self) -> Value {
        Value::Object(self.map)
    }
}
