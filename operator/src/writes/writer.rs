//! Client for writes: bounded concurrency, no rate limit, retries on request.

use std::time::Duration;

use andreas_api::names::FIELD_MANAGER;
use andreas_api::slim::SlimTrainingJob;
use andreas_runtime::client::DeadlineExceeded;
use andreas_runtime::lease::Leadership;
use andreas_runtime::watch::ObjectKey;
use k8s_openapi::api::core::v1::Service;
use kube::api::{
    DeleteParams, DynamicObject, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions,
};
use kube::core::Request;
use kube::{Client, Error, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::patch::by_operations;
use super::permits::Permits;
use super::refusal::{Refusal, classify, is_failed_test};
use crate::metrics::Metrics;

/// How often a JSON patch is sent that conflicts.
const SENDS: u32 = 4;

/// Retries of a "not now" answer before the caller gets it.
const MAX_RETRIES: u32 = 4;

/// Time limit of one write.
const MAX_WRITE: Duration = Duration::from_secs(15);

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// This replica is no longer the leader and writes nothing.
    #[error("not the leader")]
    NotLeader,
    /// The API server's error.
    #[error(transparent)]
    Api(#[from] Error),
    /// The request could not be built.
    #[error("request cannot be built")]
    Request(#[from] kube::core::request::Error),
}

impl WriteError {
    /// Its class.
    pub fn refusal(&self) -> Refusal {
        match self {
            Self::Api(error) => classify(error),
            Self::NotLeader | Self::Request(_) => Refusal::Busy(None),
        }
    }

    /// A test of a JSON patch failed.
    pub fn is_failed_test(&self) -> bool {
        match self {
            Self::Api(Error::Api(status)) => is_failed_test(status),
            _ => false,
        }
    }

    /// Not a clear refusal: the API server may have executed the request.
    pub fn may_have_written(&self) -> bool {
        match self {
            Self::Api(Error::Api(status)) => status.code == 408 || status.code >= 500,
            Self::Api(_) => true,
            Self::NotLeader | Self::Request(_) => false,
        }
    }

    /// Human-readable text: the API server's message if it answered.
    pub fn message(&self) -> String {
        match self {
            Self::Api(Error::Api(status)) => status.message.clone(),
            error => error.to_string(),
        }
    }
}

/// Writes with bounded concurrency, and only while this replica is the leader. Clones share the bound.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    permits: Permits,
    leadership: Leadership,
    metrics: Metrics,
}

impl Writer {
    /// A writer with at most `in_flight` concurrent calls, shared by the namespaces as [`Permits`] says.
    pub fn new(client: Client, in_flight: usize, leadership: Leadership, metrics: Metrics) -> Self {
        Self { client, permits: Permits::new(in_flight), leadership, metrics }
    }

    /// The client, for reads.
    pub fn client(&self) -> &Client {
        &self.client
    }

    async fn send<T: DeserializeOwned>(
        &self,
        kind: &'static str,
        build: impl Fn() -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<T, WriteError> {
        let mut tries = 0;
        loop {
            let request = build()?;
            let permit = self.permits.acquire(namespace_of(request.uri())).await;
            let Some(deadline) = self.leadership.write_deadline() else {
                return Err(WriteError::NotLeader);
            };
            let result = self.send_by(deadline, request).await;
            drop(permit);
            let error = match result {
                Ok(answer) => {
                    self.metrics.wrote(kind, "ok");
                    return Ok(answer);
                }
                Err(error) => error,
            };
            let refusal = classify(&error);
            self.metrics.wrote(kind, refusal.label());
            match refusal {
                Refusal::Busy(after)
                    if matches!(&error, Error::Api(status) if status.code == 429) && tries < MAX_RETRIES =>
                {
                    tries += 1;
                    tokio::time::sleep(after.unwrap_or(Duration::from_millis(200 << tries))).await;
                }
                _ => return Err(error.into()),
            }
        }
    }

    /// Sends a request that must take effect before `deadline`: another leader may write after it. The API
    /// server gets the same time limit, so it gives up behind a slow webhook or disk.
    async fn send_by<T: DeserializeOwned>(
        &self,
        deadline: Instant,
        mut request: http::Request<Vec<u8>>,
    ) -> Result<T, Error> {
        let left = deadline.saturating_duration_since(Instant::now()).min(MAX_WRITE);
        *request.uri_mut() = with_timeout(request.uri(), left);
        tokio::select! {
            // First: after a pause of this process no late request is sent.
            biased;
            () = tokio::time::sleep(left) => Err(Error::Service(Box::new(DeadlineExceeded(left)))),
            result = self.client.request::<T>(request) => result,
        }
    }

    /// Merge patch of an object's status; the body holds the preconditions. Returns the whole object.
    ///
    /// # Errors
    /// [`WriteError`]; a conflict if the object changed since it was read.
    pub async fn patch_status<T>(
        &self,
        kind: &'static str,
        key: &ObjectKey,
        body: &Value,
    ) -> Result<T, WriteError>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (url, params) = (T::url_path(&(), namespace(key)), manager());
        self.send(kind, || {
            Request::new(url.as_str()).patch_subresource("status", &key.name, &params, &Patch::Merge(body))
        })
        .await
    }

    /// JSON patch of a TrainingJob's status; its tests are the preconditions. Returns the whole object.
    ///
    /// # Errors
    /// [`WriteError`]; see [`WriteError::is_failed_test`].
    pub async fn patch_job_status_by_operations(
        &self,
        job: &ObjectKey,
        operations: &Value,
    ) -> Result<SlimTrainingJob, WriteError> {
        let url = SlimTrainingJob::url_path(&(), Some(&job.namespace));
        let params = manager();
        let build = || by_operations(&url, &job.name, &params, operations);
        // The API server tries each five times and conflicts if somebody else was quicker every time.
        for _ in 1..SENDS {
            match self.send("status", build).await {
                Err(error) if error.refusal() == Refusal::Conflict => {}
                result => return result,
            }
        }
        self.send("status", build).await
    }

    /// Merge patch of an object. Returns the whole object.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn patch<T>(&self, kind: &'static str, key: &ObjectKey, body: &Value) -> Result<T, WriteError>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (url, params) = (T::url_path(&(), namespace(key)), manager());
        self.send(kind, || Request::new(url.as_str()).patch(&key.name, &params, &Patch::Merge(body))).await
    }

    /// Replaces an object of any kind at this URL; the object holds the version that it was read in.
    ///
    /// # Errors
    /// [`WriteError`]; a conflict if the object changed since it was read.
    pub async fn replace(&self, url: &str, name: &str, object: &Value) -> Result<Value, WriteError> {
        let params = PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.into()) };
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        self.send("adopted", || Request::new(url).replace(name, &params, body.clone())).await
    }

    /// A consistent read of an object of any kind at this URL; `None` if absent.
    ///
    /// # Errors
    /// The API server's error.
    pub async fn get_object(&self, url: &str, name: &str) -> Result<Option<Value>, Error> {
        get(&self.client, url, name).await
    }

    /// Creates an object; returns the response as `A`.
    ///
    /// # Errors
    /// [`WriteError`]; a conflict if the name exists.
    pub async fn create<T, A>(
        &self,
        kind: &'static str,
        namespace: Option<&str>,
        object: &T,
        dry_run: bool,
    ) -> Result<A, WriteError>
    where
        T: Resource<DynamicType = ()> + Serialize,
        A: DeserializeOwned,
    {
        let url = T::url_path(&(), namespace);
        let params = PostParams { dry_run, field_manager: Some(FIELD_MANAGER.into()) };
        let body = serde_json::to_vec(object).map_err(Error::SerdeError)?;
        self.send(kind, || Request::new(url.as_str()).create(&params, body.clone())).await
    }

    /// Server-side apply of an object at this URL, with force; creates it if absent.
    ///
    /// # Errors
    /// [`WriteError`]; a conflict if the object's version differs.
    pub async fn apply<T>(
        &self,
        kind: &'static str,
        url: &str,
        name: &str,
        object: &T,
    ) -> Result<(), WriteError>
    where
        T: Serialize + std::fmt::Debug,
    {
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let build = || Request::new(url).patch(name, &params, &Patch::Apply(object));
        self.send::<serde::de::IgnoredAny>(kind, build).await.map(drop)
    }

    /// Objects of any kind at this URL with these labels; none where the cluster does not have the kind.
    ///
    /// # Errors
    /// The API server's error.
    pub async fn list(&self, url: &str, labels: &str) -> Result<Vec<DynamicObject>, WriteError> {
        let request = Request::new(url).list(&ListParams::default().labels(labels))?;
        match self.client.request::<ObjectList<DynamicObject>>(request).await {
            Ok(list) => Ok(list.items),
            Err(Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes an object with this UID (and version, if given). `true`: it existed.
    ///
    /// # Errors
    /// [`WriteError`]; a conflict if the UID or version differs.
    pub async fn delete<T>(
        &self,
        key: &ObjectKey,
        uid: &str,
        version: Option<String>,
        grace: Option<u32>,
    ) -> Result<bool, WriteError>
    where
        T: Resource<DynamicType = ()>,
    {
        self.delete_at(&T::url_path(&(), namespace(key)), &key.name, (uid, version), grace).await
    }

    /// The same of an object of any kind at this URL.
    ///
    /// # Errors
    /// [`WriteError`]; a conflict if the UID or version differs.
    pub async fn delete_at(
        &self,
        url: &str,
        name: &str,
        (uid, version): (&str, Option<String>),
        grace: Option<u32>,
    ) -> Result<bool, WriteError> {
        let params = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: version }),
            ..DeleteParams::background()
        };
        match self.send::<Value>("delete", || Request::new(url).delete(name, &params)).await {
            Ok(_) => Ok(true),
            Err(error) if error.refusal() == Refusal::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A consistent read of one object; `None` if absent.
    ///
    /// # Errors
    /// The API server's error.
    pub async fn get<T>(&self, key: &ObjectKey) -> Result<Option<T>, Error>
    where
        T: Resource<DynamicType = ()> + DeserializeOwned,
    {
        get(&self.client, &T::url_path(&(), namespace(key)), &key.name).await
    }

    /// Creates a Service; returns an existing one, even of another owner.
    ///
    /// # Errors
    /// [`WriteError`]
    pub async fn ensure_service(
        &self,
        namespace: &str,
        service: &Service,
    ) -> Result<andreas_api::slim::SlimService, WriteError> {
        match self.create("service", Some(namespace), service, false).await {
            // Quotas are asked before names: a full one refuses what is there already.
            Err(error) if matches!(error.refusal(), Refusal::Exists | Refusal::Quota(_)) => {
                let key = ObjectKey {
                    namespace: namespace.to_owned(),
                    name: service.metadata.name.clone().unwrap_or_default(),
                };
                match self.get(&key).await? {
                    Some(found) => Ok(found),
                    None => Err(error),
                }
            }
            other => other,
        }
    }
}

/// A consistent read of one object (no resource version, so not from a cache); `None` if absent.
///
/// # Errors
/// The API server's error.
pub async fn get<T: DeserializeOwned>(client: &Client, url: &str, name: &str) -> Result<Option<T>, Error> {
    let request =
        Request::new(url).get(name, &kube::api::GetParams::default()).map_err(Error::BuildRequest)?;
    match client.request(request).await {
        Ok(object) => Ok(Some(object)),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The namespace of an object; `None` of one without.
fn namespace(key: &ObjectKey) -> Option<&str> {
    (!key.namespace.is_empty()).then_some(key.namespace.as_str())
}

/// The namespace of a request; empty if it is for an object without one.
fn namespace_of(uri: &http::Uri) -> &str {
    let below = uri.path().split_once("/namespaces/");
    below.and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default()
}

/// The URL with the API server's time limit for the request.
fn with_timeout(uri: &http::Uri, left: Duration) -> http::Uri {
    let join = if uri.query().is_some_and(|query| !query.is_empty()) { "&" } else { "?" };
    let text = uri.to_string();
    let text = text.trim_end_matches(['?', '&']);
    format!("{text}{join}timeout={}ms", left.as_millis().max(1)).parse().unwrap_or_else(|_| uri.clone())
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..PatchParams::default() }
}

#[cfg(test)]
mod tests;
