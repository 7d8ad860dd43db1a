//! Objects of the API server: read, listed in pages, written. Every error names the right or the object.

use andreas_api::training_job::AdoptedJob;
use http::Request;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Resource;
use kube::api::{Api, DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::request::Request as Path;
use kube::core::{ApiResource, DynamicObject, GroupVersion};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::access::Right;
use super::connect::Cluster;
use super::error::ClusterError;

/// Most objects of one list: far above the largest cluster that is planned.
pub const MAX_OBJECTS: usize = 200_000;
/// Objects of one page.
const PAGE: u32 = 500;
/// Life of a service account's token, s; the API server makes none that is shorter.
const TOKEN_LIFE: i64 = 600;
/// Most objects that cannot be decoded and are named.
const NAMED_WARNINGS: usize = 5;

/// Which objects of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// By labels; all when absent.
    pub labels: Option<String>,
    /// By fields; all when absent.
    pub fields: Option<String>,
}

impl Selection {
    /// Those with these labels.
    pub fn labels(labels: impl Into<String>) -> Self {
        Self { labels: Some(labels.into()), fields: None }
    }
}

/// A list as it was read.
#[derive(Clone, Debug)]
pub struct Listed<K> {
    /// Its objects.
    pub items: Vec<K>,
    /// Version of the list: a watch from there misses nothing.
    pub version: String,
}

#[derive(serde::Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Vec<Box<RawValue>>,
}

#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PageMeta {
    #[serde(rename = "continue")]
    next: Option<String>,
    resource_version: String,
}

/// What of an object is known when it cannot be decoded.
#[derive(Default, serde::Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Name,
}

#[derive(Default, serde::Deserialize)]
struct Name {
    #[serde(default)]
    name: String,
}

impl Cluster {
    fn path<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Path {
        Path::new(K::url_path(&(), namespace))
    }

    /// Sends a request that needs `right`.
    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
        right: &Right,
        name: Option<&str>,
    ) -> Result<T, ClusterError> {
        let request = request.map_err(|error| ClusterError::Failed(error.to_string()))?;
        let sent = self.client.request(request).await;
        sent.map_err(|error| ClusterError::from_client(error, self.url(), right, name))
    }

    /// One object.
    ///
    /// # Errors
    /// When it does not exist, may not be read, or cannot be decoded.
    pub async fn get<K>(&self, namespace: Option<&str>, name: &str) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = Self::path::<K>(namespace).get(name, &GetParams::default());
        self.send(request, &Right::new::<K>("get", namespace), Some(name)).await
    }

    /// All objects of a namespace, or of the cluster where none is named, in the API server's order.
    ///
    /// # Errors
    /// When they may not be listed, or are more than [`MAX_OBJECTS`].
    pub async fn list<K>(&self, namespace: Option<&str>, which: &Selection) -> Result<Listed<K>, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let right = Right::new::<K>("list", namespace);
        let mut params = ListParams::default().limit(PAGE);
        params.label_selector.clone_from(&which.labels);
        params.field_selector.clone_from(&which.fields);
        let (mut items, mut broken) = (Vec::new(), Vec::new());
        loop {
            let page: Page = self.send(Self::path::<K>(namespace).list(&params), &right, None).await?;
            for raw in page.items {
                match serde_json::from_str(raw.get()) {
                    Ok(item) => items.push(item),
                    Err(_) => broken.push(raw),
                }
            }
            if items.len() > MAX_OBJECTS {
                return Err(ClusterError::Refused(format!(
                    "more than {MAX_OBJECTS} {}: name a namespace",
                    right.resource_name()
                )));
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => params.continue_token = Some(next),
                None => {
                    self.warn_of(&broken, &right);
                    return Ok(Listed { items, version: page.metadata.resource_version });
                }
            }
        }
    }

    fn warn_of(&self, broken: &[Box<RawValue>], right: &Right) {
        if broken.is_empty() || !self.warnings {
            return;
        }
        let name = |raw: &RawValue| serde_json::from_str(raw.get()).unwrap_or(Named::default()).metadata.name;
        let names: Vec<String> = broken.iter().take(NAMED_WARNINGS).map(|raw| name(raw)).collect();
        crate::output::print_error(&format!(
            "warning: {} {} cannot be read and are left out: {}",
            broken.len(),
            right.resource_name(),
            names.join(", ")
        ));
    }

    /// Makes an object.
    ///
    /// # Errors
    /// When it is refused or exists. With `dry_run` the API server checks it and keeps nothing.
    pub async fn create<K, O>(
        &self,
        namespace: Option<&str>,
        object: &O,
        dry_run: bool,
    ) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
        O: Serialize,
    {
        let data = serde_json::to_vec(object).map_err(|error| ClusterError::Failed(error.to_string()))?;
        let mut request = Self::path::<K>(namespace)
            .create(&PostParams { dry_run, field_manager: None }, data)
            .map_err(|error| ClusterError::Failed(error.to_string()))?;
        if dry_run {
            // As kubectl asks: a field that the definition lacks is an error, and not dropped.
            let uri = format!("{}&fieldValidation=Strict", request.uri());
            *request.uri_mut() = uri.parse().map_err(|_| ClusterError::Failed(uri))?;
        }
        self.send(Ok(request), &Right::new::<K>("create", namespace), None).await
    }

    /// A token of a service account, good for ten minutes; `None`: the answer has none.
    ///
    /// # Errors
    /// When the account does not exist, or no token of it may be made.
    pub async fn account_token(
        &self,
        namespace: &str,
        account: &str,
    ) -> Result<Option<String>, ClusterError> {
        let right = Right::new::<ServiceAccount>("create", Some(namespace)).on("token");
        let spec = TokenRequestSpec { expiration_seconds: Some(TOKEN_LIFE), ..TokenRequestSpec::default() };
        let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
        let made =
            made.map_err(|error| ClusterError::from_client(error, self.url(), &right, Some(account)))?;
        Ok(made.status.and_then(|status| status.token))
    }

    /// Merges `change` into an object, or into its subresource.
    ///
    /// # Errors
    /// When it does not exist, the change is refused, or its `resourceVersion` is no longer the object's.
    pub async fn merge<K>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        change: &serde_json::Value,
    ) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        let path = Self::path::<K>(namespace);
        let right = Right::new::<K>("patch", namespace);
        let (request, right) = match subresource {
            Some(part) => (path.patch_subresource(part, name, &params, &patch), right.on(part)),
            None => (path.patch(name, &params, &patch), right),
        };
        self.send(request, &right, Some(name)).await
    }

    /// Makes the object, or sets the fields that `object` has, as `kubectl apply --server-side` does.
    ///
    /// # Errors
    /// When it is refused, or another manager owns a field.
    pub async fn apply<K>(
        &self,
        namespace: Option<&str>,
        name: &str,
        object: &serde_json::Value,
    ) -> Result<K, ClusterError>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = Self::path::<K>(namespace).patch(
            name,
            &PatchParams::apply("kubectl-andreas"),
            &Patch::Apply(object),
        );
        self.send(request, &Right::new::<K>("patch", namespace), Some(name)).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When it does not exist or may not be deleted.
    pub async fn delete<K>(&self, namespace: Option<&str>, name: &str) -> Result<(), ClusterError>
    where
        K: Resource<DynamicType = ()>,
    {
        let request = Self::path::<K>(namespace).delete(name, &DeleteParams::background());
        let right = Right::new::<K>("delete", namespace);
        self.send::<serde_json::Value>(request, &right, Some(name)).await.map(|_| ())
    }

    /// Deletes the job of another kind that a TrainingJob stands for, and no later one of its name.
    ///
    /// # Errors
    /// When it does not exist or may not be deleted.
    pub async fn delete_adopted(&self, namespace: &str, adopted: &AdoptedJob) -> Result<(), ClusterError> {
        let version: GroupVersion = adopted.api_version.parse().map_err(|error| {
            ClusterError::Failed(format!("spec.adopts.apiVersion {:?}: {error}", adopted.api_version))
        })?;
        let kind = ApiResource::from_gvk(&version.with_kind(&adopted.kind));
        let path = Path::new(DynamicObject::url_path(&kind, Some(namespace)));
        let this = Preconditions { uid: Some(adopted.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
        let right = Right {
            verb: "delete",
            group: kind.group,
            resource: kind.plural,
            namespace: Some(namespace.to_owned()),
        };
        let request = path.delete(&adopted.name, &params);
        self.send::<serde_json::Value>(request, &right, Some(&adopted.name)).await.map(|_| ())
    }

    /// Whether the user has a right. Every account may ask this of itself.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn may(&self, right: &Right) -> Result<bool, ClusterError> {
        let (resource, subresource) = match right.resource.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), Some(subresource.to_owned())),
            None => (right.resource.clone(), None),
        };
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(right.verb.to_owned()),
                    group: Some(right.group.clone()),
                    resource: Some(resource),
                    subresource,
                    namespace: right.namespace.clone(),
                    ..ResourceAttributes::default()
                }),
                non_resource_attributes: None,
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer: SelfSubjectAccessReview = self.create(None, &review, false).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}
