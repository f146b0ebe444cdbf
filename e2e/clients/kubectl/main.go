// SPDX-License-Identifier: Apache-2.0

// The program kubectl, of the library that it consists of: k8s.io/kubernetes, where its own main is, is a hundred times as much.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}
