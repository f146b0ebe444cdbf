// SPDX-License-Identifier: Apache-2.0
//! The templates of `deploy/chart`, made of the files of `deploy/base`: these with all their reasons, but for the lines
//! that a value of the chart takes the place of. A line that is no longer there, or there twice, is an error.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::BASE;

/// Where the templates lie.
pub const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/chart/templates");
/// Those that are of no file of the base.
pub const OWN: [&str; 2] = ["NOTES.txt", "namespace.yaml"];
const COMMAND: &str = "BLESS=1 cargo test -p e2e --features as-tested --lib chart";

/// A file of the base, and what becomes of some of its lines.
struct Template {
    file: &'static str,
    lines: &'static [(&'static str, &'static str)],
    /// What is put around all of it.
    around: (&'static str, &'static str),
}

const PLAIN: (&str, &str) = ("", "");

const TEMPLATED: [Template; 5] = [
    Template {
        file: "crds.yaml",
        lines: &[],
        around: DEFINITIONS,
    },
    Template {
        file: "crds-traffic.yaml",
        lines: &[],
        around: DEFINITIONS,
    },
    Template {
        file: "istiod-lite.yaml",
        lines: &[
            ("  replicas: 2", "  replicas: {{ .Values.istiod.replicas }}"),
            (
                "  minAvailable: 1",
                "  minAvailable: {{ if gt (int .Values.istiod.replicas) 1 }}1{{ else }}0{{ end }}",
            ),
            (
                "        image: culvert/istiod-lite:VERSION",
                "        image: IMAGE(istiod-lite)",
            ),
            (
                "        - --monitoring=0.0.0.0:15014",
                r#"        - --monitoring=0.0.0.0:15014
        {{- with .Values.revision }}
        - {{ printf "--revision=%s" . | quote }}
        {{- end }}
        {{- with .Values.trustDomain }}
        - {{ printf "--trust-domain=%s" . | quote }}
        {{- end }}
        {{- with .Values.clusterId }}
        - {{ printf "--cluster-id=%s" . | quote }}
        {{- end }}"#,
            ),
            (
                r#"        - {name: WAYPOINT_IMAGE, value: "culvert/waypoint:VERSION"}"#,
                "        - {name: WAYPOINT_IMAGE, value: IMAGE(waypoint)}",
            ),
            LOG,
            (
                "          requests: {cpu: 100m, memory: 256Mi}",
                "          requests: {{ toJson .Values.istiod.requests }}",
            ),
        ],
        around: (
            "",
            r"{{- with .Values.meshConfig }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: istio
  namespace: istio-system
  labels: {app: istiod}
data:
  mesh: |
    {{- toYaml . | nindent 4 }}
{{- end }}
",
        ),
    },
    Template {
        file: "redirect.yaml",
        lines: &[
            (
                "        image: culvert/redirect:VERSION",
                "        image: IMAGE(redirect)",
            ),
            LOG,
            (
                "          requests: {cpu: 100m, memory: 100Mi}",
                "          requests: {{ toJson .Values.cni.requests }}",
            ),
            (
                "        hostPath: {path: /etc/cni/net.d, type: DirectoryOrCreate}",
                "        hostPath: {path: {{ .Values.cni.netDir | quote }}, type: DirectoryOrCreate}",
            ),
            (
                "        hostPath: {path: /opt/cni/bin, type: DirectoryOrCreate}",
                "        hostPath: {path: {{ .Values.cni.binDir | quote }}, type: DirectoryOrCreate}",
            ),
        ],
        around: PLAIN,
    },
    Template {
        file: "ztunnel.yaml",
        lines: &[
            (
                "        image: culvert/ztunnel:VERSION",
                "        image: IMAGE(ztunnel)",
            ),
            LOG,
            (
                "          requests: {cpu: 200m, memory: 512Mi}",
                "          requests: {{ toJson .Values.ztunnel.requests }}",
            ),
            (
                "      terminationGracePeriodSeconds: 30",
                "      terminationGracePeriodSeconds: {{ .Values.ztunnel.gracePeriodSeconds }}",
            ),
            (
                r#"        - {name: TERMINATION_GRACE_PERIOD_SECONDS, value: "30"}"#,
                "        - {name: TERMINATION_GRACE_PERIOD_SECONDS, value: {{ .Values.ztunnel.gracePeriodSeconds | quote }}}",
            ),
            (
                "        - {name: ISTIO_META_CLUSTER_ID, value: Kubernetes}",
                r#"        - {name: ISTIO_META_CLUSTER_ID, value: {{ .Values.clusterId | default "Kubernetes" | quote }}}"#,
            ),
        ],
        around: PLAIN,
    },
];

/// Templates, and not Helm's folder `crds`: what lies there is never upgraded, and a kind that the next version adds would
/// be missing. Like there they stay when the chart goes, for with a definition go all policies of its kind.
const DEFINITIONS: (&str, &str) = ("{{- if .Values.crds }}\n", "{{- end }}\n");
const METADATA: &str = "\nmetadata:\n";
/// The only thing that the chart's definitions have and the base's don't.
pub const KEPT: (&str, &str) = ("helm.sh/resource-policy", "keep");

const LOG: (&str, &str) = (
    "        - {name: RUST_LOG, value: info}",
    "        - {name: RUST_LOG, value: {{ .Values.logLevel | quote }}}",
);

/// Each template's path and text, as they follow from the base.
///
/// # Errors
/// A file of the base does not have what a value takes the place of.
pub fn templates() -> Result<Vec<(PathBuf, String)>> {
    TEMPLATED
        .iter()
        .map(|template| {
            let base = PathBuf::from(BASE).join(template.file);
            let text =
                std::fs::read_to_string(&base).with_context(|| base.display().to_string())?;
            let made = template
                .of(&text)
                .with_context(|| base.display().to_string())?;
            Ok((PathBuf::from(TEMPLATES).join(template.file), made))
        })
        .collect()
}

impl Template {
    fn of(&self, base: &str) -> Result<String> {
        ensure!(!base.contains("{{"), "Helm would take {{{{ for its own");
        let mut text = base.to_owned();
        for (line, becomes) in self.lines {
            let line = format!("\n{}\n", with_version(line));
            let found = text.matches(&line).count();
            ensure!(
                found == 1,
                "the line `{}` is there {found} times; e2e/src/deploy/chart.rs names it",
                line.trim()
            );
            text = text.replace(&line, &format!("\n{}\n", with_image(becomes)));
        }
        if self.around == DEFINITIONS {
            let (key, value) = KEPT;
            let kept = format!("{METADATA}  annotations: {{{key}: {value}}}\n");
            text = text.replace(METADATA, &kept);
        }
        let (before, after) = self.around;
        Ok(format!(
            "{before}# Made of deploy/base/{}: `{COMMAND}` writes this file.\n{text}{after}",
            self.file
        ))
    }
}

fn with_version(line: &str) -> String {
    line.replace("VERSION", env!("CARGO_PKG_VERSION"))
}

/// `IMAGE(name)` is the image of this name, wherever and in whichever version the values say.
fn with_image(line: &str) -> String {
    let Some((before, rest)) = line.split_once("IMAGE(") else {
        return line.to_owned();
    };
    let (name, after) = rest.split_once(')').unwrap_or((rest, ""));
    format!(
        r#"{before}"{{{{ with .Values.image.registry }}}}{{{{ . }}}}/{{{{ end }}}}culvert/{name}:{{{{ .Values.image.tag | default .Chart.AppVersion }}}}"{after}"#
    )
}

#[cfg(test)]
mod tests {
    use super::super::{files, names};
    use super::*;

    #[test]
    fn templates_are_what_follows_from_the_base() {
        let made = templates().unwrap();
        if std::env::vars().any(|(name, _)| name == "BLESS") {
            for (path, text) in &made {
                std::fs::write(path, text).unwrap();
            }
        }
        for (path, text) in &made {
            let held = std::fs::read_to_string(path).unwrap_or_default();
            assert!(held == *text, "{} is stale: {COMMAND}", path.display());
        }
        let mut expected: Vec<String> = OWN.map(str::to_owned).to_vec();
        expected.extend(TEMPLATED.iter().map(|one| one.file.to_owned()));
        let mut there: Vec<String> = std::fs::read_dir(TEMPLATES)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        expected.sort_unstable();
        there.sort_unstable();
        assert_eq!(there, expected);
    }

    #[test]
    fn every_file_of_the_base_is_in_the_chart_or_named_beside_it() {
        let mut in_chart: Vec<&str> = TEMPLATED.iter().map(|one| one.file).collect();
        in_chart.extend(OWN);
        for (name, _) in files().unwrap() {
            assert!(in_chart.contains(&name.as_str()), "{name}");
        }
        assert!(names().unwrap().len() >= TEMPLATED.len());
    }

    #[test]
    fn the_chart_is_of_this_version() {
        let path = PathBuf::from(TEMPLATES).join("../Chart.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let chart = crate::manifests::documents(&text).unwrap().remove(0);
        for key in ["version", "appVersion"] {
            assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key}");
        }
    }

    #[test]
    fn a_line_that_is_gone_or_there_twice_or_helms_own_is_named() {
        let template = Template {
            file: "a.yaml",
            lines: &[("  replicas: 2", "  replicas: {{ 2 }}")],
            around: PLAIN,
        };
        for (base, part) in [
            ("spec:\n", "`replicas: 2` is there 0 times"),
            ("a:\n  replicas: 2\nb:\n  replicas: 2\n", "2 times"),
            ("a: '{{'\n  replicas: 2\n", "{{ for its own"),
        ] {
            let error = template.of(base).expect_err(base).to_string();
            assert!(error.contains(part), "{error}");
        }
        let made = template.of("a:\n  replicas: 2\n").unwrap();
        assert!(made.ends_with("a:\n  replicas: {{ 2 }}\n"), "{made}");
    }
}
