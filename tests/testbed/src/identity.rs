//! Who speaks to the API server: kubeconfigs and clients for users, nodes and service accounts.

use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::kubeconfig::{self, IdentityError, user_kubeconfig, write_kubeconfig};
use crate::pki::file_name;
use crate::testbed::Testbed;

impl Testbed {
    /// The administrator's kubeconfig (group `system:masters`).
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout().kubeconfig("admin")
    }

    /// A client with the administrator's rights.
    pub fn client(&self) -> kube::Client {
        self.admin_client().clone()
    }

    /// A client that speaks with any kubeconfig.
    pub async fn client_for(&self, kubeconfig: &Path) -> Result<kube::Client, IdentityError> {
        kubeconfig::client(kubeconfig).await
    }

    /// A kubeconfig for a user with a fresh client certificate.
    pub fn kubeconfig_for_user(&self, user: &str, group: Option<&str>) -> Result<PathBuf, IdentityError> {
        user_kubeconfig(
            self.pki(),
            &self.layout().kubeconfig(&file_name(user)),
            self.api_server_url(),
            user,
            group,
        )
    }

    /// A kubeconfig of a node's kubelet: user `system:node:NAME`, group `system:nodes`, fenced by the Node authorizer and
    /// the NodeRestriction admission plugin.
    pub fn kubeconfig_for_node(&self, node: &str) -> Result<PathBuf, IdentityError> {
        self.kubeconfig_for_user(&format!("system:node:{node}"), Some("system:nodes"))
    }

    /// A kubeconfig that speaks as a service account, with a token of the TokenRequest API valid for a day: for
    /// programs that run under a chart's RBAC as plain processes. The account must exist.
    pub async fn kubeconfig_for_service_account(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf, IdentityError> {
        let path = self.layout().kubeconfig(&file_name(&format!("{namespace}-{name}")));
        self.write_service_account_kubeconfig(&path, self.api_server_url(), namespace, name).await?;
        Ok(path)
    }

    /// The same, for the endpoint of a [fault proxy](crate::faults::FaultProxy) that this caller uses.
    pub async fn kubeconfig_through_proxy(
        &self,
        url: &str,
        caller: &str,
        namespace: &str,
        name: &str,
    ) -> Result<PathBuf, IdentityError> {
        let path = self.layout().kubeconfig(&file_name(&format!("{namespace}-{name}-{caller}")));
        self.write_service_account_kubeconfig(&path, url, namespace, name).await?;
        Ok(path)
    }

    async fn write_service_account_kubeconfig(
        &self,
        path: &Path,
        server: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), IdentityError> {
        let token = self.service_account_token(namespace, name, &[]).await?;
        write_kubeconfig(path, server, self.pki().ca(), namespace, &json!({"token": token}))?;
        Ok(())
    }

    /// A token of a service account for these audiences (none: the API server's own), valid for a day.
    pub async fn service_account_token(
        &self,
        namespace: &str,
        name: &str,
        audiences: &[&str],
    ) -> Result<String, IdentityError> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(audiences.iter().map(ToString::to_string).collect()),
                expiration_seconds: Some(24 * 3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let failed = |source| IdentityError::Token {
            account: format!("{namespace}/{name}"),
            source: Box::new(source),
        };
        let answer =
            accounts.create_token_request(name, &PostParams::default(), &request).await.map_err(failed)?;
        Ok(answer.status.and_then(|status| status.token).unwrap_or_default())
    }
}
