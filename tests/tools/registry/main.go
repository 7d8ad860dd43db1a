// A registry of images on a folder: distribution with the one storage driver that the tests need. The full program links the
// clouds' SDKs.
package main

import (
	"github.com/distribution/distribution/v3/registry"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	registry.RootCmd.Execute()
}
