//! The API server's audit log, parsed: who did what, and with which answer.
//!
//! Every request is recorded once, when its answer is complete; Bindings and evictions with their body. A watch is
//! recorded when it ends. Lines that are not complete yet are left for the next read.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// Time until a line that is no event is read a second time.
const SECOND_LOOK: Duration = Duration::from_millis(200);

/// The audit log could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The file.
    #[error("cannot read the audit log {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A complete line that is no audit event.
    #[error("not an audit event: {line:?}")]
    Parse {
        /// The line.
        line: String,
        /// Why.
        source: serde_json::Error,
    },
}

/// One request (`audit.k8s.io/v1` Event), the fields that tests ask about.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditEvent {
    /// Identity of the request.
    #[serde(rename = "auditID")]
    pub audit_id: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Who asked.
    pub user: User,
    /// The client's own name for itself.
    #[serde(default)]
    pub user_agent: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// The object asked for; none for paths such as `/readyz`.
    #[serde(default)]
    pub object_ref: ObjectRef,
    /// The answer's status.
    #[serde(default)]
    pub response_status: Option<ResponseStatus>,
    /// The request's body, where the policy records it.
    #[serde(default)]
    pub request_object: Option<serde_json::Value>,
    /// The answer's body, where the policy records it.
    #[serde(default)]
    pub response_object: Option<serde_json::Value>,
    /// When the request came, RFC 3339 with microseconds.
    pub request_received_timestamp: String,
    /// When the answer was complete.
    pub stage_timestamp: String,
}

/// The user of an [`AuditEvent`].
#[derive(Debug, Clone, Deserialize)]
pub struct User {
    /// For example `system:serviceaccount:andreas-system:andreas-operator`.
    #[serde(default)]
    pub username: String,
    /// The user's groups.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// The object of an [`AuditEvent`]; empty strings where there is none.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectRef {
    /// `pods`, `trainingjobs`, ...
    pub resource: String,
    /// `binding`, `status`, ...
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The API group; empty for the core group.
    pub api_group: String,
}

/// The answer of an [`AuditEvent`].
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ResponseStatus {
    /// The HTTP status.
    pub code: u16,
    /// Kubernetes' reason, for errors.
    pub reason: String,
    /// Its message, for errors.
    pub message: String,
}

impl AuditEvent {
    /// The HTTP status of the answer; 0 when none was recorded.
    pub fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }

    /// Whether this is a Binding of a pod.
    pub fn is_binding(&self) -> bool {
        self.verb == "create"
            && self.object_ref.resource == "pods"
            && self.object_ref.subresource == "binding"
    }
}

/// A place in the audit log; an iterator over the events from there on that ends at the present end of the file and
/// can be asked again later.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    reader: BufReader<File>,
    offset: u64,
}

impl AuditLog {
    /// The log from this byte on.
    pub fn open(path: &Path, from: u64) -> Result<Self, AuditError> {
        let open = || {
            let mut file = File::open(path)?;
            file.seek(SeekFrom::Start(from))?;
            Ok(file)
        };
        let file = open().map_err(|source| AuditError::Read { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), reader: BufReader::new(file), offset: from })
    }

    /// Leaves out what is recorded already: only later events are read.
    pub fn skip_to_end(mut self) -> Result<Self, AuditError> {
        for event in self.by_ref() {
            event?;
        }
        Ok(self)
    }

    fn next_event(&mut self) -> Result<Option<AuditEvent>, AuditError> {
        let line = self.next_line();
        let line = line.map_err(|source| AuditError::Read { path: self.path.clone(), source })?;
        let event = line.map(|line| {
            serde_json::from_str(&line).map_err(|source| AuditError::Parse { line: line.clone(), source })
        });
        event.transpose()
    }

    fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        let bytes = self.reader.read_line(&mut line)?;
        if line.ends_with('\n') {
            self.offset += u64::try_from(bytes).unwrap_or(0);
            return Ok(Some(line));
        }
        // Half a line: back to its start, for the next time.
        self.reader.seek(SeekFrom::Start(self.offset))?;
        Ok(None)
    }
}

impl Iterator for AuditLog {
    type Item = Result<AuditEvent, AuditError>;

    fn next(&mut self) -> Option<Self::Item> {
        let begin = self.offset;
        match self.next_event() {
            // Twice, on a very busy machine, a line near the end did not parse; why is not known. If the file itself is
            // broken there, the second reading says so.
            Err(AuditError::Parse { .. }) => {
                std::thread::sleep(SECOND_LOOK);
                self.offset = begin;
                match self.reader.seek(SeekFrom::Start(begin)) {
                    Ok(_) => self.next_event().transpose(),
                    Err(source) => Some(Err(AuditError::Read { path: self.path.clone(), source })),
                }
            }
            first => first.transpose(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    const LINE: &str = r#"{"auditID":"a","verb":"create","user":{"username":"u"},"userAgent":"x/1","requestURI":"/api","objectRef":{"resource":"pods","subresource":"binding","name":"p","namespace":"n"},"responseStatus":{"code":201},"requestObject":{"kind":"Binding"},"requestReceivedTimestamp":"t","stageTimestamp":"t"}"#;

    #[test]
    fn half_a_line_is_read_when_the_rest_has_come() {
        // given a log that ends within a line
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (half, rest) = LINE.split_at(60);
        writeln!(file, "{LINE}").unwrap();
        write!(file, "{half}").unwrap();
        // when it is read
        let mut log = AuditLog::open(file.path(), 0).unwrap();
        let first = log.next().unwrap().unwrap();
        // then the complete event is there, the half one comes later
        assert!(first.is_binding() && first.code() == 201);
        assert!(log.next().is_none());
        writeln!(file, "{rest}").unwrap();
        assert_eq!(log.next().unwrap().unwrap().object_ref.name, "p");
        assert!(log.next().is_none());
    }

    #[test]
    fn a_line_that_stays_broken_is_an_error_and_one_that_is_mended_is_read() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{}", LINE.replacen(':', " ", 1)).unwrap();
        let mut log = AuditLog::open(file.path(), 0).unwrap();
        assert!(matches!(log.next(), Some(Err(AuditError::Parse { .. }))));
        assert!(log.next().is_none());
        // when the line is mended between the two looks
        let path = file.path().to_owned();
        let mending = std::thread::spawn(move || {
            std::thread::sleep(SECOND_LOOK / 20);
            std::fs::write(path, format!("{LINE}\n")).unwrap();
        });
        let mut log = AuditLog::open(file.path(), 0).unwrap();
        assert!(log.next().unwrap().unwrap().is_binding());
        mending.join().unwrap();
    }
}
