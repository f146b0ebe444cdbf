// SPDX-License-Identifier: Apache-2.0
//! Flags and environment → what the program needs. A flag wins over its variable.
//! All mistakes are reported at once.

use std::{
    collections::BTreeMap, fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration,
};

use clap::Parser;
use ops::logging::{Format, LogConfig};
use spiffe::TrustDomain;

use crate::{
    authenticate::NodeAccount,
    ca::{Lifetimes, ServingName},
    translate::{Mesh, Ranges},
};

/// The environment, handed in.
pub type Environment = BTreeMap<String, String>;

/// What the user typed.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "istiod-lite", version, about = "The control plane of the mesh", long_about = None)]
pub struct Arguments {
    /// Where the cluster's objects come from: `kubernetes`, its API server, or `dir:PATH`, a directory of manifests
    /// [SOURCE; kubernetes]
    #[arg(long)]
    source: Option<String>,
    /// File that says how to reach the API server; without one, as the pod's own service account [KUBECONFIG]
    #[arg(long)]
    kubeconfig: Option<String>,
    /// Address of the xDS and CA server [LISTEN_ADDRESS; 0.0.0.0:15012]
    #[arg(long)]
    listen: Option<String>,
    /// Directory in which the roots are published, and without an API server the authority keeps its keys [STATE_DIR]
    #[arg(long)]
    state: Option<String>,
    /// Directory of a plugged-in authority: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem [CACERTS_DIR; with an
    /// API server the Secret cacerts, else istio-ca-secret]
    #[arg(long)]
    cacerts: Option<String>,
    /// File of the keys that sign service-account tokens (JWKS) [JWKS_PATH; the API server reviews tokens]
    #[arg(long)]
    jwks: Option<String>,
    /// Issuer of the tokens that these keys sign [TOKEN_ISSUER]
    #[arg(long)]
    issuer: Option<String>,
    /// Audience that tokens must be for [TOKEN_AUDIENCES; istio-ca]
    #[arg(long)]
    audience: Option<String>,
    /// Realm of the identities [TRUST_DOMAIN; cluster.local]
    #[arg(long)]
    trust_domain: Option<String>,
    /// Domain under which services are named [CLUSTER_DOMAIN; cluster.local]
    #[arg(long)]
    domain: Option<String>,
    /// Id of the cluster [CLUSTER_ID; Kubernetes]
    #[arg(long)]
    cluster_id: Option<String>,
    /// What this replica is called among others [POD_NAME; istiod-lite]
    #[arg(long)]
    pod_name: Option<String>,
    /// Namespace whose policies hold for the whole mesh, and where the authority is kept [ROOT_NAMESPACE; istio-system]
    #[arg(long)]
    root_namespace: Option<String>,
    /// Whether hosts of ServiceEntries that have no address are given one [PILOT_ENABLE_IP_AUTOALLOCATE; true]
    #[arg(long)]
    auto_allocate: Option<String>,
    /// Where their IPv4 addresses are taken from [PILOT_IP_AUTOALLOCATE_IPV4_PREFIX; 240.240.0.0/16]
    #[arg(long)]
    auto_allocate_v4: Option<String>,
    /// Where their IPv6 addresses are taken from [PILOT_IP_AUTOALLOCATE_IPV6_PREFIX; 2001:2::/48]
    #[arg(long)]
    auto_allocate_v6: Option<String>,
    /// Whether ztunnels are told of policies in dry run, which those of Istio before 1.29 would enforce
    /// [AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY; true]
    #[arg(long)]
    dry_run_at_ztunnels: Option<String>,
    /// Service accounts that may ask for the identities of their node's pods, as
    /// namespace/name, separated by commas [CA_TRUSTED_NODE_ACCOUNTS; <root namespace>/ztunnel]
    #[arg(long)]
    node_accounts: Option<String>,
    /// DNS names and addresses of the server's certificate, separated by commas
    /// [SERVING_NAMES; istiod.<root namespace>.svc]
    #[arg(long)]
    name: Option<String>,
    /// Address for debug pages, which tell who is where and may do what; also has what the next one has
    /// [ADMIN_ADDRESS; 127.0.0.1:8080]
    #[arg(long)]
    admin: Option<String>,
    /// Address for readiness and metrics [MONITORING_ADDRESS; 0.0.0.0:15014]
    #[arg(long)]
    monitoring: Option<String>,
    /// Names by which Gateways and objects of Istio's kinds ask for this control plane (label istio.io/rev): its revision,
    /// then its tags, separated by commas. A Gateway that names none asks for `default`, another object for all
    /// [REVISION; default]
    #[arg(long)]
    revision: Option<String>,
    /// Lifetime of a certificate whose client names none [DEFAULT_WORKLOAD_CERT_TTL; 24h]
    #[arg(long)]
    default_cert_ttl: Option<String>,
    /// File of certificate authorities that are trusted besides the system's where the keys of token issuers are fetched
    /// [JWKS_EXTRA_ROOTS; /cacerts/extra.pem, if it is there]
    #[arg(long)]
    jwks_roots: Option<String>,
    /// Image of the waypoints that Gateways ask for [WAYPOINT_IMAGE; culvert/waypoint of this version]
    #[arg(long)]
    waypoint_image: Option<String>,
    /// Longest lifetime that a client may ask for [MAX_WORKLOAD_CERT_TTL; 2160h]
    #[arg(long)]
    max_cert_ttl: Option<String>,
}

/// What the program needs.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the cluster's objects come from.
    pub source: SourceConfig,
    /// Where clients connect.
    pub listen: SocketAddr,
    /// Where operators look.
    pub admin: SocketAddr,
    /// Where kubelets and scrapers look.
    pub monitoring: SocketAddr,
    /// The revisions that it answers to; there is one.
    pub revisions: Vec<String>,
    /// What this replica is called among others.
    pub replica: String,
    /// What is the same for the whole mesh.
    pub mesh: Mesh,
    /// The certificate authority.
    pub authority: AuthorityConfig,
    /// How callers prove who they are.
    pub tokens: TokenConfig,
    /// Who else is trusted where the keys of token issuers are fetched; the file need not be there.
    pub jwks_roots: PathBuf,
    /// The image of waypoints.
    pub waypoint_image: String,
    /// How the process logs.
    pub log: LogConfig,
}

/// Where the cluster's objects come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceConfig {
    /// A directory of manifests.
    Directory(PathBuf),
    /// An API server, reached as this kubeconfig says or as the pod's own service account.
    Kubernetes(Option<PathBuf>),
}

/// The certificate authority.
#[derive(Debug, Clone)]
pub struct AuthorityConfig {
    /// Where its roots are published, and without an API server its keys kept.
    pub state: PathBuf,
    /// A plugged-in authority.
    pub cacerts: Option<PathBuf>,
    /// The names that the server's certificate is for.
    pub serving_names: Vec<ServingName>,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
}

/// How callers prove who they are.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// Who knows tokens.
    pub authority: TokenAuthority,
    /// Whom they must be for.
    pub audiences: Vec<String>,
    /// Accounts that may ask for the identities of their node's pods.
    pub node_accounts: Vec<NodeAccount>,
}

/// Who knows tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenAuthority {
    /// The API server that the cluster's objects come from.
    Server,
    /// We, by the keys that sign them.
    Keys {
        /// The file of these keys.
        jwks: PathBuf,
        /// Who signs.
        issuer: String,
    },
}

/// All that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Mistakes(pub Vec<String>);

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration has mistakes:")?;
        self.0
            .iter()
            .try_for_each(|mistake| write!(f, "\n  {mistake}"))
    }
}

impl Config {
    /// Reads flags and environment.
    ///
    /// # Errors
    /// Lists all mistakes.
    pub fn read(arguments: &Arguments, environment: &Environment) -> Result<Self, Mistakes> {
        let mut reader = Reader {
            environment,
            mistakes: Vec::new(),
        };
        let a = arguments;
        let source = reader.source(a);
        let listen = reader.parsed(&a.listen, "listen", "LISTEN_ADDRESS", "0.0.0.0:15012");
        let admin = reader.parsed(&a.admin, "admin", "ADMIN_ADDRESS", "127.0.0.1:8080");
        let monitoring = reader.parsed(
            &a.monitoring,
            "monitoring",
            "MONITORING_ADDRESS",
            "0.0.0.0:15014",
        );
        let revisions = reader.list(&a.revision, "revision", "REVISION", "default");
        let replica = reader.text(&a.pod_name, "POD_NAME", "istiod-lite");
        let root = reader.text(&a.root_namespace, "ROOT_NAMESPACE", "istio-system");
        let trust_domain: Option<TrustDomain> = reader.parsed(
            &a.trust_domain,
            "trust-domain",
            "TRUST_DOMAIN",
            TrustDomain::DEFAULT,
        );
        let cluster_id = reader.text(&a.cluster_id, "CLUSTER_ID", "Kubernetes");
        let cluster_domain = reader.text(&a.domain, "CLUSTER_DOMAIN", "cluster.local");
        let auto_allocate = reader.auto_allocate(a);
        let dry_run_at_ztunnels = reader.parsed(
            &a.dry_run_at_ztunnels,
            "dry-run-at-ztunnels",
            "AMBIENT_ENABLE_DRY_RUN_AUTHORIZATION_POLICY",
            "true",
        );
        let state = reader.required(&a.state, "state", "STATE_DIR");
        let token_authority = reader.token_authority(a, source.as_ref());
        let audiences = reader.list(&a.audience, "audience", "TOKEN_AUDIENCES", "istio-ca");
        let ztunnel = format!("{root}/ztunnel");
        let node_accounts = reader.parsed_list(
            &a.node_accounts,
            "node-accounts",
            "CA_TRUSTED_NODE_ACCOUNTS",
            &ztunnel,
        );
        let service = format!("istiod.{root}.svc");
        let serving_names = reader.parsed_list(&a.name, "name", "SERVING_NAMES", &service);
        let default_ttl = reader.duration(
            &a.default_cert_ttl,
            "default-cert-ttl",
            "DEFAULT_WORKLOAD_CERT_TTL",
            "24h",
        );
        let max_ttl = reader.duration(
            &a.max_cert_ttl,
            "max-cert-ttl",
            "MAX_WORKLOAD_CERT_TTL",
            "2160h",
        );
        if default_ttl > max_ttl {
            reader
                .mistakes
                .push("default-cert-ttl: is longer than max-cert-ttl".to_owned());
        }
        let cacerts = reader.given(&a.cacerts, "CACERTS_DIR").map(PathBuf::from);
        let image = format!("culvert/waypoint:{}", env!("CARGO_PKG_VERSION"));
        let waypoint_image = reader.text(&a.waypoint_image, "WAYPOINT_IMAGE", &image);
        let jwks_roots = reader.text(&a.jwks_roots, "JWKS_EXTRA_ROOTS", "/cacerts/extra.pem");
        let log = reader.log();
        let (Some(source), Some(listen), Some(admin), Some(monitoring), Some(trust_domain), true) = (
            source,
            listen,
            admin,
            monitoring,
            trust_domain,
            reader.mistakes.is_empty(),
        ) else {
            return Err(Mistakes(reader.mistakes));
        };
        Ok(Self {
            source,
            listen,
            admin,
            monitoring,
            revisions,
            replica,
            mesh: Mesh {
                cluster_id,
                cluster_domain,
                trust_domain,
                root_namespace: root,
                auto_allocate,
                dry_run_at_ztunnels: dry_run_at_ztunnels == Some(true),
            },
            authority: AuthorityConfig {
                state: state.into(),
                cacerts,
                serving_names,
                lifetimes: Lifetimes {
                    default: default_ttl,
                    max: max_ttl,
                },
            },
            tokens: TokenConfig {
                authority: token_authority,
                audiences,
                node_accounts,
            },
            jwks_roots: jwks_roots.into(),
            waypoint_image,
            log,
        })
    }
}

struct Reader<'a> {
    environment: &'a Environment,
    mistakes: Vec<String>,
}

impl Reader<'_> {
    fn given(&self, flag: &Option<String>, variable: &str) -> Option<String> {
        let value = flag.as_ref().or_else(|| self.environment.get(variable))?;
        (!value.is_empty()).then(|| value.clone())
    }

    fn text(&self, flag: &Option<String>, variable: &str, default: &str) -> String {
        self.given(flag, variable)
            .unwrap_or_else(|| default.to_owned())
    }

    fn required(&mut self, flag: &Option<String>, name: &str, variable: &str) -> String {
        self.given(flag, variable).unwrap_or_else(|| {
            self.mistakes
                .push(format!("--{name} ({variable}): is required"));
            String::new()
        })
    }

    fn parsed<T>(
        &mut self,
        flag: &Option<String>,
        name: &str,
        variable: &str,
        default: &str,
    ) -> Option<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let text = self.text(flag, variable, default);
        text.parse()
            .map_err(|error| {
                self.mistakes
                    .push(format!("--{name} ({variable}): {text:?}: {error}"));
            })
            .ok()
    }

    fn auto_allocate(&mut self, a: &Arguments) -> Option<Ranges> {
        let on = self.parsed(
            &a.auto_allocate,
            "auto-allocate",
            "PILOT_ENABLE_IP_AUTOALLOCATE",
            "true",
        );
        let Ranges { v4, v6 } = Ranges::default();
        let v4 = self.parsed(
            &a.auto_allocate_v4,
            "auto-allocate-v4",
            "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX",
            &v4.to_string(),
        );
        let v6 = self.parsed(
            &a.auto_allocate_v6,
            "auto-allocate-v6",
            "PILOT_IP_AUTOALLOCATE_IPV6_PREFIX",
            &v6.to_string(),
        );
        let ranges = v4.zip(v6).map(|(v4, v6)| Ranges { v4, v6 });
        ranges.filter(|_| on == Some(true))
    }

    fn list(
        &mut self,
        flag: &Option<String>,
        name: &str,
        variable: &str,
        default: &str,
    ) -> Vec<String> {
        let text = self.text(flag, variable, default);
        let items: Vec<String> = text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect();
        if items.is_empty() {
            self.mistakes
                .push(format!("--{name} ({variable}): {text:?} lists nothing"));
        }
        items
    }

    fn source(&mut self, a: &Arguments) -> Option<SourceConfig> {
        let text = self.text(&a.source, "SOURCE", "kubernetes");
        if text == "kubernetes" {
            let kubeconfig = self.given(&a.kubeconfig, "KUBECONFIG");
            return Some(SourceConfig::Kubernetes(kubeconfig.map(PathBuf::from)));
        }
        let path = text.strip_prefix("dir:").filter(|path| !path.is_empty());
        if path.is_none() {
            self.mistakes.push(format!(
                "--source (SOURCE): {text:?} is neither kubernetes nor of the form dir:PATH"
            ));
        }
        path.map(|path| SourceConfig::Directory(path.into()))
    }

    fn token_authority(&mut self, a: &Arguments, source: Option<&SourceConfig>) -> TokenAuthority {
        let keys = self.given(&a.jwks, "JWKS_PATH");
        if keys.is_none() && matches!(source, Some(SourceConfig::Kubernetes(_))) {
            return TokenAuthority::Server;
        }
        TokenAuthority::Keys {
            jwks: self.required(&a.jwks, "jwks", "JWKS_PATH").into(),
            issuer: self.required(&a.issuer, "issuer", "TOKEN_ISSUER"),
        }
    }

    fn parsed_list<T>(
        &mut self,
        flag: &Option<String>,
        name: &str,
        variable: &str,
        default: &str,
    ) -> Vec<T>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let mut items = Vec::new();
        for text in self.list(flag, name, variable, default) {
            match text.parse() {
                Ok(item) => items.push(item),
                Err(error) => self
                    .mistakes
                    .push(format!("--{name} ({variable}): {error}")),
            }
        }
        items
    }

    fn duration(
        &mut self,
        flag: &Option<String>,
        name: &str,
        variable: &str,
        default: &str,
    ) -> Duration {
        let text = self.text(flag, variable, default);
        let parsed = parse_duration(&text).filter(|duration| !duration.is_zero());
        parsed.unwrap_or_else(|| {
            self.mistakes.push(format!(
                "--{name} ({variable}): {text:?} is no duration such as 90m or 24h"
            ));
            Duration::ZERO
        })
    }

    fn log(&mut self) -> LogConfig {
        let format = match self.environment.get("LOG_FORMAT").map(String::as_str) {
            None | Some("" | "plain") => Format::Plain,
            Some("json") => Format::Json,
            Some(other) => {
                self.mistakes
                    .push(format!("LOG_FORMAT: {other:?} is neither plain nor json"));
                Format::Plain
            }
        };
        let filter = self
            .environment
            .get("RUST_LOG")
            .cloned()
            .unwrap_or_default();
        LogConfig {
            format,
            filter,
            always: "",
        }
    }
}

/// Reads a duration as Go writes it: `1h30m`, `45s`, `500ms`.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let millis = match &rest[..unit] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(millis)?))?;
        rest = &rest[unit..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Config, Mistakes> {
        let arguments = Arguments::try_parse_from(std::iter::once(&"istiod-lite").chain(arguments))
            .expect("flags");
        let environment = environment
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Config::read(&arguments, &environment)
    }

    const LEAST: [(&str, &str); 4] = [
        ("SOURCE", "dir:/m"),
        ("STATE_DIR", "/s"),
        ("JWKS_PATH", "/j"),
        ("TOKEN_ISSUER", "lab"),
    ];

    #[test]
    fn what_is_not_given_has_the_documented_default() {
        let config = read(&[], &LEAST).expect("valid");
        assert_eq!(config.listen.port(), 15012);
        assert_eq!(config.mesh.cluster_id, "Kubernetes");
        assert!(config.admin.ip().is_loopback());
        assert_eq!(config.monitoring.port(), 15014);
        assert_eq!(config.revisions, ["default"]);
        assert_eq!(config.mesh.auto_allocate, Some(Ranges::default()));
        assert_eq!(config.tokens.audiences, ["istio-ca"]);
        assert_eq!(
            config.tokens.node_accounts,
            ["istio-system/ztunnel".parse().expect("an account")]
        );
        let name = ServingName::Dns("istiod.istio-system.svc".into());
        assert_eq!(config.authority.serving_names, [name]);
        assert_eq!(config.authority.lifetimes, Lifetimes::default());
    }

    #[test]
    fn a_flag_wins_over_its_variable() {
        let config =
            read(&["--source", "dir:/other", "--trust-domain", "td"], &LEAST).expect("valid");
        assert_eq!(config.source, SourceConfig::Directory("/other".into()));
        assert_eq!(config.mesh.trust_domain.as_str(), "td");
    }

    #[test]
    fn without_a_directory_the_cluster_is_followed() {
        let source = |arguments: &[&str]| {
            let least =
                LEAST.map(|(name, value)| (name, if name == "SOURCE" { "" } else { value }));
            read(arguments, &least).expect("valid").source
        };
        assert_eq!(source(&[]), SourceConfig::Kubernetes(None));
        let file = SourceConfig::Kubernetes(Some("/k".into()));
        assert_eq!(source(&["--source=kubernetes", "--kubeconfig=/k"]), file);
    }

    #[test]
    fn the_api_server_reviews_tokens_unless_keys_are_named() {
        let authority = |arguments: &[&str]| {
            let config = read(arguments, &[("STATE_DIR", "/s")]).expect("valid");
            config.tokens.authority
        };
        assert_eq!(authority(&[]), TokenAuthority::Server);
        let keys = TokenAuthority::Keys {
            jwks: "/j".into(),
            issuer: "i".into(),
        };
        assert_eq!(authority(&["--jwks=/j", "--issuer=i"]), keys);
        assert!(read(&["--jwks=/j"], &[("STATE_DIR", "/s")]).is_err());
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let mistakes = read(
            &[
                "--source",
                "/m",
                "--listen",
                "nowhere",
                "--trust-domain",
                "UPPER",
                "--auto-allocate",
                "perhaps",
                "--auto-allocate-v4",
                "2001:2::/48",
            ],
            &[
                ("CA_TRUSTED_NODE_ACCOUNTS", "ztunnel"),
                ("LOG_FORMAT", "xml"),
                ("MAX_WORKLOAD_CERT_TTL", "9"),
            ],
        )
        .expect_err("invalid")
        .0;
        let expected = [
            "--source",
            "--listen",
            "--trust-domain",
            "--auto-allocate ",
            "--auto-allocate-v4",
            "--state",
            "--jwks",
            "--issuer",
            "--node-accounts",
            "--max-cert-ttl",
            "LOG_FORMAT",
        ];
        for field in expected {
            assert!(
                mistakes.iter().any(|mistake| mistake.starts_with(field)),
                "{field}: {mistakes:#?}"
            );
        }
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5400)));
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        for bad in ["h", "9", "1d", "1h ", "-1h"] {
            assert_eq!(parse_duration(bad), None, "{bad:?}");
        }
    }
}
