// Copyright nobody.

package silent
