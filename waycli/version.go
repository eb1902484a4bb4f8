package waycli

import (
	"cmp"
	"context"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version.

With --json: {"name", "version", "revision", "go", "os", "arch"}.`,
		Example: "  waybill version --json",
		Args:    cobra.NoArgs,
		RunE:    c.run(func(_ context.Context, s *session, _ []string) error { return s.version() }),
	}
}

func (s *session) version() error {
	v := struct {
		Name     string `json:"name"`
		Version  string `json:"version"`
		Revision string `json:"revision,omitempty"`
		Go       string `json:"go"`
		OS       string `json:"os"`
		Arch     string `json:"arch"`
	}{Name: s.app.Name, Version: s.app.Version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		v.Version = cmp.Or(v.Version, info.Main.Version)
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				v.Revision = setting.Value
			}
		}
	}
	v.Version = cmp.Or(v.Version, "(unknown)")
	if s.flags.json {
		s.stdout.json(v)
		return nil
	}
	s.stdout.line("%s %s (%s %s/%s)", v.Name, v.Version, v.Go, v.OS, v.Arch)
	return nil
}
