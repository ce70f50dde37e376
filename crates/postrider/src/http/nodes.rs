//! What this deployment runs on and with: its nodes, and the settings of the one that answers. Additions of ours to the
//! contract, for operators.

use super::{Api, auth::Environment, error::Error, extract::Query, idempotency::json, time::Time};
use crate::config::{InEffect, Place, Showing};
use axum::{extract::State, response::Response};
use http::StatusCode;
use postrider_store::Shards;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

pub fn routes() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(settings))
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodesOut {
    data: Vec<NodeOut>,
    /// How many shards there are, of which each is one node's at a time.
    shards: usize,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeOut {
    /// Counts the starts of nodes of this deployment; a node that starts again gets another one. 0 where there is only one.
    id: i64,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<Time>,
    /// It is heard of, as far as the others know.
    alive: bool,
    /// It keeps its shards until then if it is not heard of; absent where there is only one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Time>,
    /// It is about to stop and hands over what it has.
    retiring: bool,
    shards: usize,
    /// It is the one that answers.
    #[serde(rename = "self")]
    is_self: bool,
    /// Known of the one that answers only.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingsOut {
    data: Vec<SettingOut>,
    version: &'static str,
    node: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SettingOut {
    name: &'static str,
    /// Null if it is not set, or is a secret.
    #[schema(required)]
    value: Option<String>,
    /// It is set and not shown.
    hidden: bool,
    /// `default`, `file`, `variable` or `flag`.
    source: &'static str,
    /// The same with the file's name and line, or the name of the variable or flag.
    place: String,
    about: &'static str,
}

impl SettingOut {
    fn of(setting: &InEffect) -> Self {
        let (value, hidden) = match &setting.value {
            Showing::NotSet => (None, false),
            Showing::Hidden => (None, true),
            Showing::Text(text) => (Some(text.clone()), false),
        };
        let source = match setting.place {
            Place::Default => "default",
            Place::File { .. } => "file",
            Place::Variable(_) => "variable",
            Place::Flag(_) => "flag",
        };
        Self { name: setting.name, value, hidden, source, place: setting.place.to_string(), about: setting.about }
    }
}

/// List the nodes of this deployment.
#[utoipa::path(get, path = "/api/v1/node", operation_id = "v1.node.list", tag = "Node",
    responses((status = 200, body = NodesOut)))]
async fn list(State(api): State<Arc<Api>>, environment: Environment, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let shards = Shards::ALL.len();
    let found = environment.store().nodes().await?;
    let data = match found.is_empty() {
        true => vec![NodeOut {
            id: 0,
            name: api.settings.node_name.clone(),
            started_at: Some(Time(api.settings.started_at)),
            alive: true,
            lease_until: None,
            retiring: false,
            shards,
            is_self: true,
            version: Some(VERSION),
        }],
        false => {
            let out = |node: postrider_store::Node| NodeOut {
                id: node.id,
                name: node.name,
                started_at: node.started_at.map(Time),
                alive: node.alive,
                lease_until: node.lease_until.map(Time),
                retiring: node.retiring,
                shards: node.shards,
                is_self: node.is_self,
                version: node.is_self.then_some(VERSION),
            };
            found.into_iter().map(out).collect()
        }
    };
    Ok(json(StatusCode::OK, &NodesOut { data, shards }))
}

/// See the settings that the node that answers runs with. Secrets are not shown.
#[utoipa::path(get, path = "/api/v1/settings", operation_id = "v1.settings.get", tag = "Node",
    responses((status = 200, body = SettingsOut)))]
async fn settings(State(api): State<Arc<Api>>, _: Environment, query: Query) -> Result<Response, Error> {
    query.finish()?;
    let data = api.settings.in_effect.iter().map(SettingOut::of).collect();
    Ok(json(StatusCode::OK, &SettingsOut { data, version: VERSION, node: api.settings.node_name.clone() }))
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
