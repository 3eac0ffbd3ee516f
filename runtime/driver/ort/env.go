package ort

import (
	"errors"
	"sync"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/ortapi"
)

// env is a library's environment, which all processors of this process share. The last one to close
// releases it.
type env struct {
	*ortapi.Env
	lib       *ortapi.Library
	prepacked *ortapi.PrepackedWeights // equal weights of several graphs are kept once, in the library's layout
	storages  map[string]storage       // by options of sessions: the weights that are multiplied exactly
	convolves map[string]bool          // by the same: whether 8-bit codes are convolved exactly
	used      int
}

// envs are the open environments, by their library.
var envs struct {
	sync.Mutex
	of map[*ortapi.Library]*env
}

// environment opens or shares a library's environment. Its thread pool covers every core that the
// process may use, and processors of all cores share it, so that hundreds of graphs do not bring a
// pool each.
func environment(lib *ortapi.Library) (*env, error) {
	envs.Lock()
	defer envs.Unlock()
	if environment := envs.of[lib]; environment != nil {
		environment.used++
		return environment, nil
	}
	cores := affinity.Cores()
	inner, err := lib.NewEnv(ortapi.EnvOptions{Threads: len(cores), Cores: cores[1:]})
	if err != nil {
		return nil, err
	}
	environment := &env{Env: inner, lib: lib, used: 1}
	if environment.prepacked, err = inner.NewPrepackedWeights(); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	if envs.of == nil {
		envs.of = map[*ortapi.Library]*env{}
	}
	envs.of[lib] = environment
	return environment, nil
}

// release gives back one use of the environment.
func (e *env) release() error {
	envs.Lock()
	defer envs.Unlock()
	if e.used--; e.used > 0 {
		return nil
	}
	delete(envs.of, e.lib)
	return errors.Join(e.prepacked.Close(), e.Close())
}
