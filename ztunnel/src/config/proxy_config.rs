// SPDX-License-Identifier: Apache-2.0
//! Istio's ProxyConfig document, from `PROXY_CONFIG` over the `defaultConfig` of the mesh configuration file.

use std::collections::BTreeMap;

use serde::Deserialize;

use ops::variables::Reader;

/// The keys of ProxyConfig that a node proxy uses; all others belong to other proxies and are left alone.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    discovery_address: Option<String>,
    proxy_admin_port: Option<u16>,
    stats_port: Option<u16>,
    concurrency: Option<usize>,
    proxy_metadata: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MeshConfig {
    default_config: Option<Document>,
}

pub(super) struct ProxyConfig {
    pub(super) discovery_address: Option<String>,
    pub(super) admin_port: u16,
    pub(super) stats_port: u16,
    pub(super) concurrency: Option<usize>,
    /// Keys without their `ISTIO_META_` prefix.
    pub(super) metadata: BTreeMap<String, String>,
}

impl ProxyConfig {
    pub(super) fn read(reader: &mut Reader<'_>, mesh_config: Option<&str>) -> Self {
        let mesh = mesh_config
            .filter(|text| !text.trim().is_empty())
            .map(serde_saphyr::from_str::<MeshConfig>);
        let base = match mesh {
            Some(Ok(mesh)) => mesh.default_config.unwrap_or_default(),
            Some(Err(error)) => {
                reader.mistake(
                    "./etc/istio/config/mesh",
                    &format!("is not a mesh configuration: {error}"),
                );
                Document::default()
            }
            None => Document::default(),
        };
        let own = reader
            .text("PROXY_CONFIG")
            .filter(|text| !text.trim().is_empty());
        let over = match own.as_deref().map(serde_saphyr::from_str::<Document>) {
            Some(Ok(document)) => document,
            Some(Err(error)) => {
                reader.mistake("PROXY_CONFIG", &format!("is not a ProxyConfig: {error}"));
                Document::default()
            }
            None => Document::default(),
        };
        let metadata = base.proxy_metadata.into_iter().chain(over.proxy_metadata);
        Self {
            discovery_address: over.discovery_address.or(base.discovery_address),
            admin_port: over
                .proxy_admin_port
                .or(base.proxy_admin_port)
                .unwrap_or(15000),
            stats_port: over.stats_port.or(base.stats_port).unwrap_or(15020),
            concurrency: over.concurrency.or(base.concurrency),
            metadata: metadata
                .map(|(key, value)| {
                    (
                        key.strip_prefix("ISTIO_META_").unwrap_or(&key).to_owned(),
                        value,
                    )
                })
                .collect(),
        }
    }
}
